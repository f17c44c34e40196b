"""The contributions of other ranks that this node holds: where they lie, which there are, which may go.

Those on its disk lie beside the node's own store, `workers/SLOT.copies/JOB/run-RUN/rank-RANK/`, under the names that they have on their
owner's disk, so that the next process of this slot finds them, also under a fresh id. What was brought back for the node's own rank lies
there as well. Copies of what their owners have in memory lie in memory here too (`memory_copies.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from recovery.checkpoint import catalogue, names
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.durable_files import is_temporary, reason_of
from recovery.checkpoint.fetched import sealed_bytes
from recovery.checkpoint.retention import remove
from recovery.config import MemorySettings
from recovery.core.ids import Rank, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.core.tiers import tier_of
from recovery.errors import CheckpointError, CheckpointWriteError
from recovery.file_systems import words_of
from recovery.transport.served import Served
from recovery.worker.memory_copies import MemoryCopies

_logger = logging.getLogger("recovery.worker")
_JOB = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,8})", re.ASCII)
_OWN_MAX = 64
"""Own checkpoints whose slot is remembered. A plan names one of the newest two or three."""


class Ordered(NamedTuple):
    """A copy that is to be made."""

    job: str
    rank: Rank
    """Whose."""
    checkpoint: HeldCheckpoint
    """As its owner has it."""


class Copies:
    """The copies of one node. Blocks; from any thread but one at a time for each rank."""

    def __init__(self, recovery_path: Path, slot: str) -> None:
        """Note where they lie; nothing is made.

        Args:
            recovery_path: where the node's own store is.
            slot: the id of the first process of this slot.
        """
        self._recovery_path, self._slot = recovery_path, slot
        self._memory: MemoryCopies | None = None
        """Those in memory; None: there are none."""
        self._root = recovery_path.absolute() / "workers" / f"{slot}.copies"
        self._own: dict[str, Path] = {}
        """Where this node's own checkpoints lie, by digest, the newest last."""
        self._swept: set[str] = set()
        """Jobs whose copies were looked through for what was left half fetched."""
        self._passed_over: set[str] = set()
        """What was not taken, as it was logged."""

    def use_memory(self, settings: MemorySettings, job_is_over: Callable[[], bool]) -> None:
        """Keep copies in memory too, if there are checkpoints in memory.

        Args:
            settings: what the environment says.
            job_is_over: asked when this process ends: what is left there then goes.
        """
        if settings.every_steps:
            self._memory = MemoryCopies(settings, self._recovery_path, self._slot, job_is_over)

    def directory(self, job: str, run: RunId, rank: Rank) -> Path:
        """Where the contributions of a rank lie."""
        return self._run(job, run) / f"rank-{rank}"

    def directories(self, job: str, run: RunId, rank: Rank) -> tuple[Path, ...]:
        """Where contributions of a rank may lie, on the disk and in memory."""
        in_memory = self._ranks_in_memory(job, run)
        return (self.directory(job, run, rank), *(where for whose, where in in_memory if whose == rank))

    def directory_for(self, order: Ordered) -> Path:
        """Where a copy is to lie: in memory if its original does.

        Raises:
            CheckpointWriteError: it is to lie in memory, and there is none for it.
        """
        if tier_of(order.checkpoint.path).is_durable:
            return self.directory(order.job, order.checkpoint.run, order.rank)
        return self._in_memory(order)

    def _in_memory(self, order: Ordered) -> Path:
        copy = order.checkpoint
        directory = self.directory(order.job, copy.run, order.rank)
        if self._memory is None:
            raise CheckpointWriteError(
                path=directory,
                reason="it is to lie in memory, and MS_MEMORY_CHECKPOINT_STEPS is not set here",
            )
        try:
            directory = self._memory.directory(_safe(order.job), copy.run, order.rank)
        except OSError as error:
            raise CheckpointWriteError(path=directory, reason=words_of(error, directory)) from error
        here = self.held(order.job, copy.run)
        others = [
            checkpoint for rank, checkpoint in here if (rank, checkpoint.step) != (order.rank, copy.step)
        ]
        held_bytes = sum(
            checkpoint.file_bytes for checkpoint in others if not tier_of(checkpoint.path).is_durable
        )
        bytes_max = self._memory.bytes_max(held_bytes)
        if held_bytes + copy.file_bytes > bytes_max:
            reason = f"it takes {copy.file_bytes} bytes, and {held_bytes} of the {bytes_max} for copies in memory are taken (MS_MEMORY_CHECKPOINT_BYTES)"
            raise CheckpointWriteError(path=directory, reason=reason)
        return directory

    def _run(self, job: str, run: RunId) -> Path:
        return self._root / _safe(job) / f"run-{run}"

    def note_own(self, digest: str, path: str) -> None:
        """This node has a checkpoint of its own that others may ask for."""
        self._own.pop(digest, None)
        self._own[digest] = Path(path)
        while len(self._own) > _OWN_MAX:
            del self._own[next(iter(self._own))]

    def sweep(self, job: str) -> None:
        """Remove what an earlier process has left half fetched; done once for a job, before this process fetches anything of it.

        Only this slot writes here, and one process of it at a time.
        """
        if job in self._swept:
            return
        self._swept.add(job)
        if self._memory is not None:
            # Where it cannot be made, the code that is to keep something there says so.
            with contextlib.suppress(OSError):
                self._memory.hold(_safe(job))
        on_disk = self._root.glob("*/run-*/rank-*/.*")
        for path in (*on_disk, *(self._memory.paths() if self._memory is not None else ())):
            if is_temporary(path.name):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    _logger.warning("event=copy_not_removed path=%s reason=%r", path, reason_of(error))

    def held(self, job: str, run: RunId) -> tuple[tuple[Rank, HeldCheckpoint], ...]:
        """List what may be used of a run, of each rank one contribution a step, newest step first.

        Cost: one small read and two opens a contribution.
        """
        found: list[tuple[Rank, HeldCheckpoint]] = []
        for rank, directory in self._ranks(job, run):
            for held in self._look(directory, job, run, rank).held:
                if (rank, held.step) not in {(known, checkpoint.step) for known, checkpoint in found}:
                    found.append((rank, held))
        return tuple(sorted(found, key=lambda pair: (-pair[1].step, pair[0])))

    def keep_only(self, job: str, run: RunId, keeps: Callable[[Rank, HeldCheckpoint], bool]) -> None:
        """Remove the others, also what is left of one whose files are not all there. What cannot be removed stays, and is logged.

        Args:
            job: whose.
            run: of which run; those of another one are not looked at.
            keeps: whether a contribution is still needed.
        """
        for rank, directory in self._ranks(job, run):
            found = self._look(directory, job, run, rank)
            for checkpoint in (*found.held, *found.remains):
                if keeps(rank, checkpoint):
                    continue
                try:
                    remove(Path(checkpoint.path))
                except OSError as error:
                    _logger.warning(
                        "event=copy_not_removed path=%s reason=%r", checkpoint.path, reason_of(error)
                    )

    def served(self, digest: str) -> Served | None:
        """Find what another node asks for, own or copied; None: it is not here any more."""
        own = self._own.get(digest)
        for path in (*((own,) if own is not None else ()), *self._paths()):
            try:
                manifest = manifests.read_for(names.manifest_path(path), file=path.name)
                if manifest.digest == digest:
                    return Served(sealed_bytes(path), manifest.paths(path.parent))
            except (CheckpointError, OSError):
                # Gone, or another's by now: the node that asks is answered that it is not here.
                continue
        return None

    def _paths(self) -> Iterator[Path]:
        on_disk = sorted(self._root.glob("*/run-*/rank-*/*"))
        for path in (*on_disk, *(self._memory.paths() if self._memory is not None else ())):
            if names.parse(path.name) is not None:
                yield path

    def _ranks(self, job: str, run: RunId) -> Iterator[tuple[Rank, Path]]:
        for directory in sorted(self._run(job, run).glob("rank-*")):
            match = _RANK.fullmatch(directory.name)
            if match is not None:
                yield Rank(int(match[1])), directory
        yield from self._ranks_in_memory(job, run)

    def _ranks_in_memory(self, job: str, run: RunId) -> tuple[tuple[Rank, Path], ...]:
        if self._memory is None:
            return ()
        try:
            return tuple(self._memory.ranks(_safe(job), run))
        except OSError as error:
            # Nothing can have been kept there. The code that is to keep something there says so.
            _logger.debug("no copies in memory: %s", error)
            return ()

    def _look(self, directory: Path, job: str, run: RunId, rank: Rank) -> catalogue.Listing:
        """What lies there; what does not fit is logged once."""
        try:
            found = catalogue.list_directory(directory, None, job=job, run=run, rank=rank)
        except CheckpointError as error:
            self._pass_over(str(directory), str(error))
            return catalogue.Listing((), ())
        for skipped in found.passed_over:
            self._pass_over(skipped.path, skipped.reason)
        return found

    def _pass_over(self, path: str, reason: str) -> None:
        if path not in self._passed_over:
            self._passed_over.add(path)
            _logger.warning("event=copy_passed_over path=%s reason=%r", path, reason)


def _safe(job: str) -> str:
    """A job names itself by a hex number; whatever else it said must not lead elsewhere."""
    return job if _JOB.fullmatch(job) else hashlib.sha256(job.encode()).hexdigest()
