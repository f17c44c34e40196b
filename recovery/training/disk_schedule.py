"""When a save on the disk is due: by the number of the step, or by the time since the last commit there, and never by where a generation began.

A rank that goes back to a step in memory goes on behind steps whose save on the disk it lost with the process. What counted from
there would never come to its turn where failures are closer together than two saves.
"""

from __future__ import annotations

from typing import NamedTuple


class DiskCommits(NamedTuple):
    """What a generation knows of commits on all ranks' disks."""

    step: int
    """The newest step that lay there when the generation was planned: the same on all ranks. 0: none."""
    since_ms: int | None
    """How long before the plan it was committed; None: nobody knows."""
    heard_ms: int | None
    """When a newer commit was heard of, on the monotonic clock; None: not in this generation."""
    newest_step: int = 0
    """The newest step that lies there, as far as this rank has heard; 0: none is known."""


class DiskSchedule:
    """The turns of one ModelCheckpoint. Reads no clock; all ranks that are told the same take the same turns."""

    def __init__(self, *, every_steps: int, every_seconds: int) -> None:
        """Choose the rule.

        Args:
            every_steps: a turn at each multiple of it, counted over all epochs; 0: by seconds.
            every_seconds: a turn whenever so many seconds have passed since the last commit on all ranks' disks; 0: none.
        """
        self._every_steps, self._every_ms = every_steps, every_seconds * 1000
        self._behind_step = 0
        """By steps: multiples up to this one had their turn, or lie on the disks in what is newer."""
        self._since_ms: int | None = 0
        self._counts_from_ms: int | None = None
        """By seconds: the last commit, on this process's clock; None before the first step of a generation."""
        self._turns = 0
        """How many turns came since then."""

    def begin(self, *, durable_step: int, since_commit_ms: int | None) -> None:
        """A generation begins. A turn that came before it and is not on the disks comes again at its first step.

        Args:
            durable_step: the newest step on all ranks' disks, as the plan says.
            since_commit_ms: how long ago, when the plan was made, that was committed; None: nobody knows, so it is due at once.
        """
        self._behind_step = durable_step
        self._since_ms, self._counts_from_ms, self._turns = since_commit_ms, None, 0

    def takes_turn(self, step: int, *, now_ms: int, committed_ms: int | None) -> bool:
        """Is it time? Asked once behind each step; a turn is over when it was named.

        Args:
            step: that was just applied.
            now_ms: on the monotonic clock.
            committed_ms: when a commit on the disks was heard of last, on the same clock; None: not in this generation.
        """
        if self._every_steps:
            is_due = step // self._every_steps * self._every_steps > self._behind_step
            self._behind_step = step if is_due else self._behind_step
            return is_due
        if not self._every_ms:
            return False
        if committed_ms is not None and committed_ms != self._counts_from_ms:
            self._counts_from_ms, self._turns = committed_ms, 0
        elif self._counts_from_ms is None:
            # All ranks end the first step together, however long each took to load.
            since_ms = self._every_ms if self._since_ms is None else self._since_ms
            self._counts_from_ms = now_ms - since_ms
        turns = (now_ms - self._counts_from_ms) // self._every_ms
        is_due, self._turns = turns > self._turns, max(turns, self._turns)
        return is_due
