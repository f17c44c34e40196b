"""The checkpoint files on the hosts' disks: who can read which, and what a look finds."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from recovery.core import messages as m
from recovery.core.policy.replica_difference import NAMES_CHARS
from recovery.core.tiers import MEMORY_DIRECTORY_PREFIX, Tier, tier_of

Content = tuple[tuple[int, int, str], ...]
"""How weights came to be: (generation, from step, address of the world) of each stretch. Two ranks with different histories have different
bits, also where two worlds were given one number."""


COPIES = ".copies-"
"""In the name of a directory with what was fetched to a node."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint file on a node's disk."""

    held: m.HeldCheckpoint
    content: Content
    rank: int
    """Of whose weights it is."""
    good: bool = True
    """False: a bit of it has flipped."""
    gone: bool = False
    """True: somebody has removed it."""
    fault: str = ""
    """Not empty: a look passes it over, and says this."""
    job: str = ""


class Disks:
    """Directories by name, each with one file a step. Every node saves into the one of its own name."""

    def __init__(self, can_read: Callable[[str, str], bool]) -> None:
        """Begin empty.

        Args:
            can_read: whether a node (first) reaches a directory (second).
        """
        self._directories: defaultdict[str, dict[int, Saved]] = defaultdict(dict)
        self._gone: dict[str, Saved] = {}
        """By path: what was in memory last, and is not there any more."""
        self.can_read = can_read

    def __getitem__(self, directory: str) -> dict[int, Saved]:
        """The files of a directory, by step."""
        return self._directories[directory]

    def below(self, prefix: str) -> list[str]:
        """Directories whose names begin so."""
        return sorted(name for name in self._directories if name.startswith(prefix))

    def lose(self, is_lost: Callable[[str], bool]) -> None:
        """A disk is gone, with the directories on it."""
        for name in [name for name in self._directories if is_lost(name)]:
            del self._directories[name]

    def file_at(self, path: str) -> Saved | None:
        """What lies at a path."""
        directory, _, step = path.rpartition("/")
        return self._directories[directory].get(int(step))

    def let_go(self, directory: str, step: int) -> None:
        """A file in memory is gone."""
        file = self._directories[directory].pop(step)
        self._gone[file.held.path] = file

    def lose_memory(self, host: str) -> bool:
        """A host restarts. Was there anything in its memory?"""
        lost = [
            (directory, step)
            for directory, files in self._directories.items()
            for step in files
            if directory.startswith(f"{MEMORY_DIRECTORY_PREFIX}{host}/")
        ]
        for directory, step in lost:
            self.let_go(directory, step)
        return bool(lost)

    def was_at(self, path: str) -> Saved | None:
        """What lies at a path, or did in memory."""
        return self.file_at(path) or self._gone.get(path)

    def look(
        self, node: str, directories: Iterable[str], *, job: str, run: int, rank: int | None
    ) -> tuple[tuple[m.HeldCheckpoint, ...], tuple[m.Skipped, ...]]:
        """List what a node can read of a run: one file a step, of the newest generation; and what it passes over.

        Args:
            node: who looks.
            directories: where.
            job: whose files.
            run: of which run of it.
            rank: of which rank; None: of any.
        """
        held: dict[int, m.HeldCheckpoint] = {}
        passed_over: list[m.Skipped] = []
        for directory in sorted(set(directories)):
            if not self.can_read(node, directory):
                continue
            for step, file in self._directories[directory].items():
                if file.gone or file.job != job or file.held.run != run:
                    continue
                of_another = rank is not None and file.rank != rank
                fault = file.fault or ("it is of another rank" if of_another else "")
                if fault:
                    passed_over.append(m.Skipped(path=file.held.path, reason=fault, step=step))
                elif step not in held or _worth(held[step]) < _worth(file.held):
                    held[step] = file.held
        return (
            tuple(held[step] for step in sorted(held, reverse=True)),
            tuple(sorted(passed_over, key=lambda one: (-one.step, one.path))),
        )


def _worth(held: m.HeldCheckpoint) -> tuple[int, bool]:
    return held.generation, tier_of(held.path) is Tier.DISK


def is_usable(file: Saved, plan: m.Rollback) -> bool:
    """What a load finds when it reads the file and its manifest."""
    whole = file.good and not file.gone and not file.fault
    return whole and file.rank == plan.rank and file.held.digest == plan.digest


def checkpoint(plan: m.Rollback, step: int, name: str, content: Content) -> m.HeldCheckpoint:
    """A checkpoint file as its manifest tells it. Ranks of one history have the same weights, all others have not."""
    weights = hashlib.sha256(f"{step} {content}".encode()).hexdigest()
    world = content[-1][-1]
    return m.HeldCheckpoint(
        run=plan.run,
        generation=plan.generation,
        step=step,
        epoch=1,
        step_in_epoch=step,
        path=f"{name}/{step}",
        digest=f"{name}-{plan.run}-{plan.generation}-{step}-{world}",
        file_bytes=1,
        replica=f"{'names':{NAMES_CHARS}}{weights}",
    )
