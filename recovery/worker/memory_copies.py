"""Where the copies lie that one node holds in memory, and how much there is for them.

They lie beside the host's own checkpoints in memory, in the job's directory there, and go with it.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from recovery.checkpoint import memory_tier
from recovery.config import MemorySettings
from recovery.core.ids import Rank, RunId
from recovery.worker import memory_tier_hold

_SHARE = 4
"""The copies of a node take a quarter of what is free, where nobody says how much: as much as the host's own checkpoints there."""


class MemoryCopies:
    """The copies in memory of one node. Blocks, as `Copies` does."""

    def __init__(
        self, settings: MemorySettings, recovery_path: Path, slot: str, job_is_over: Callable[[], bool]
    ) -> None:
        """Note where they lie; nothing is made.

        Args:
            settings: what the environment says.
            recovery_path: of the job.
            slot: the id of the first process of this slot.
            job_is_over: asked when this process ends: what is left then goes.
        """
        self._settings, self._recovery_path = settings, recovery_path
        self._begins, self._job_is_over = f"{slot}.copies.", job_is_over
        self._roots: set[Path] = set()
        """Of the jobs whose directories this process holds."""

    def hold(self, job: str) -> Path:
        """Hold the directory of a job, made if absent.

        Args:
            job: a name that leads nowhere else.

        Raises:
            OSError: it cannot be made.
        """
        root = memory_tier_hold.hold(self._settings.base, job, self._recovery_path, self._job_is_over).root
        self._roots.add(root)
        return root

    def directory(self, job: str, run: RunId, rank: Rank) -> Path:
        """Where the contributions of a rank lie; its parent is there.

        Raises:
            OSError: there is no directory for the job.
        """
        return self.hold(job) / f"{self._begins}run-{run}.rank-{rank}"

    def ranks(self, job: str, run: RunId) -> Iterator[tuple[Rank, Path]]:
        """Whose contributions may lie here, and where.

        Raises:
            OSError: there is no directory for the job.
        """
        any_rank = self.directory(job, run, Rank(0))
        begins = any_rank.name.removesuffix("0")
        for path in sorted(any_rank.parent.iterdir()):
            number = path.name.removeprefix(begins)
            if path.name.startswith(begins) and re.fullmatch(r"0|[1-9][0-9]{0,8}", number, re.ASCII):
                yield Rank(int(number)), path

    def paths(self) -> Iterator[Path]:
        """All files of the jobs whose directories this process holds."""
        for root in sorted(self._roots):
            yield from sorted(root.glob(f"{glob.escape(self._begins)}*/*"))

    def bytes_max(self, held_bytes: int) -> int:
        """How many bytes all of them may take, of which `held_bytes` are taken."""
        free = memory_tier.free_bytes(self._settings.base)
        return self._settings.bytes_max or (free + held_bytes) // _SHARE
