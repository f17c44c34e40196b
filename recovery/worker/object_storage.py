"""Object storage as one worker sees it: sends what is committed, and brings back what its disk has lost."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from recovery.core.held import HeldCheckpoint
from recovery.core.ids import Rank, RunId
from recovery.core.records import CheckpointRecord, Record
from recovery.core.tiers import Tier, tier_of
from recovery.errors import CheckpointError
from recovery.objects import commits
from recovery.objects.store import opened
from recovery.objects.uploads import Uploads

if TYPE_CHECKING:
    from recovery.worker.copy_files import Copies

_logger = logging.getLogger("recovery.worker")
_END_S = 20.0
"""How long the end of a finished job waits for the last checkpoint to be sent."""
_TRIED = 2
"""Of the newest committed steps there; the ranks of a world that find the newest damaged all hold the one before."""


class ObjectStorage:
    """One per process. What blocks says so; `note_saved` and `committed` do not."""

    def __init__(
        self,
        url: str,
        copies: Copies | None,
        place_is_ours: Callable[[], bool],
        spare: Callable[[tuple[int, ...]], None],
    ) -> None:
        """Prepare; nothing is asked of the storage.

        Args:
            url: of it; empty: there is none, and nothing here does anything.
            copies: says where what is brought back lies; None: recovery is off.
            place_is_ours: asked before a name is given.
            spare: takes the steps that stay on the disk for the sake of what is in the storage. From any thread.
        """
        self._spare = spare
        self._url, self._copies, self._place_is_ours = url, copies, place_is_ours
        self._uploads = Uploads(lambda: opened(url), spare=spare)
        self._asked: set[tuple[str, RunId, Rank]] = set()

    @property
    def is_on(self) -> bool:
        """Is there any?"""
        return bool(self._url) and self._copies is not None

    def note_saved(self, records: Iterable[Record]) -> None:
        """This rank has saved checkpoints."""
        for record in records:
            if isinstance(record, CheckpointRecord):
                self._know(record.step, record.path)

    def committed(self, step: int) -> None:
        """All ranks hold this step on their disks."""
        if self.is_on and step:
            self._uploads.committed(step)

    def ends(self) -> None:
        """The job has finished: the end of the process waits a little for what is not sent yet."""
        if self.is_on:
            atexit.register(self._finish, os.getpid())

    def bring(
        self, job: str, run: RunId, rank: Rank, held: Iterable[HeldCheckpoint]
    ) -> tuple[HeldCheckpoint, ...]:
        """Bring this rank's part of the newest step that the storage has committed, unless it is held. Blocks.

        Asked once in a process: whoever was not restarted has its disk.

        Args:
            job: whose.
            run: of which run of it.
            rank: whose contribution.
            held: what this node has.

        Returns:
            What was brought, to be offered like any other; empty: nothing, and the log says why.
        """
        own = tuple(held)
        for one in own:
            self._know(one.step, one.path)
        if not self.is_on or (job, run, rank) in self._asked:
            return ()
        self._asked.add((job, run, rank))
        try:
            store = opened(self._url)
            there = commits.steps(store, job, run)
        except CheckpointError as error:
            _logger.warning("event=store_not_asked training goes on without it: %s", error)
            return ()
        # Whoever was restarted with its disk must go on to hold what another rank may come back with.
        self._spare(tuple(at.step for at in there[:1]))
        if not there:
            _logger.info("event=store_has_none url=%s job=%s run=%d", self._url, job, run)
        for at in there[:_TRIED]:
            try:
                commit = commits.read(store, job, run, at)
                if commit is None or rank >= commit.world_size:
                    continue
                if any(one.digest == commit.ranks[rank].digest for one in own):
                    return ()
                assert self._copies is not None, "it is on"
                brought = commits.download(
                    store, commit, rank, self._copies.directory(job, run, rank), self._place_is_ours
                )
            except CheckpointError as error:
                _logger.warning("event=checkpoint_not_brought step=%d from the store: %s", at.step, error)
                continue
            _logger.info("event=checkpoint_brought step=%d url=%s path=%s", at.step, self._url, brought.path)
            self._know(brought.step, brought.path)
            return (brought,)
        return ()

    def _know(self, step: int, path: str) -> None:
        # A folder has no files of one rank alone, and what is in memory is no durable step.
        if self.is_on and not path.endswith("/") and tier_of(path) is Tier.DISK:
            self._uploads.know(step, Path(path))

    def _finish(self, pid: int) -> None:
        """A forked child has no thread."""
        if os.getpid() == pid and not self._uploads.finish(_END_S):
            _logger.warning(
                "event=upload_not_finished the last checkpoint is not in the store: it fails, or %g s are over",
                _END_S,
            )
