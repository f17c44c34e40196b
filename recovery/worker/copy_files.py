"""The contributions of other ranks that this node holds, on its disk: where they lie, which there are, which may go.

They lie beside the node's own store, `workers/PLACE.copies/JOB/run-RUN/rank-RANK/`, under the names that they have on their owner's disk,
so that the next process of this place finds them, also under a fresh id. What was brought back for the node's own rank lies there as well.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from recovery.checkpoint import catalogue, names
from recovery.checkpoint import manifest as manifests
from recovery.checkpoint.fetched import sealed_bytes
from recovery.checkpoint.files import is_temporary, reason_of
from recovery.checkpoint.retention import remove
from recovery.core.ids import Rank, RunId
from recovery.core.messages import HeldCheckpoint
from recovery.errors import CheckpointError
from recovery.transport.file_server import Served

_logger = logging.getLogger("recovery.worker")
_JOB = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,8})", re.ASCII)
_OWN_MAX = 64
"""Own checkpoints whose place is remembered. A plan names one of the newest two or three."""


class Copies:
    """The copies of one node. Blocks; from any thread but one at a time for each rank."""

    def __init__(self, recovery_path: Path, place: str) -> None:
        """Note where they lie; nothing is made.

        Args:
            recovery_path: where the node's own store is.
            place: the id of the first process of this place.
        """
        self._root = recovery_path.absolute() / "workers" / f"{place}.copies"
        self._own: dict[str, Path] = {}
        """Where this node's own checkpoints lie, by digest, the newest last."""
        self._swept = False
        self._passed_over: set[str] = set()
        """What was not taken, as it was logged."""

    def directory(self, job: str, run: RunId, rank: Rank) -> Path:
        """Where the contributions of a rank lie."""
        return self._run(job, run) / f"rank-{rank}"

    def _run(self, job: str, run: RunId) -> Path:
        # A job names itself by a hex number; whatever else it said must not lead elsewhere.
        name = job if _JOB.fullmatch(job) else hashlib.sha256(job.encode()).hexdigest()
        return self._root / name / f"run-{run}"

    def note_own(self, digest: str, path: str) -> None:
        """This node has a checkpoint of its own that others may ask for."""
        self._own.pop(digest, None)
        self._own[digest] = Path(path)
        while len(self._own) > _OWN_MAX:
            del self._own[next(iter(self._own))]

    def sweep(self) -> None:
        """Remove what an earlier process has left half fetched; done once, before this one fetches anything.

        Only this place writes here, and one process of it at a time.
        """
        if self._swept:
            return
        self._swept = True
        for path in self._root.glob("*/run-*/rank-*/.*"):
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
            for held in self._look(directory, job, run, rank):
                if (rank, held.step) not in {(known, one.step) for known, one in found}:
                    found.append((rank, held))
        return tuple(sorted(found, key=lambda one: (-one[1].step, one[0])))

    def keep_only(self, job: str, run: RunId, keeps: Callable[[Rank, HeldCheckpoint], bool]) -> None:
        """Remove the others. What cannot be removed stays, and is logged.

        Args:
            job: whose.
            run: of which run; those of another one are not looked at.
            keeps: whether a contribution is still needed.
        """
        for rank, directory in self._ranks(job, run):
            for held in self._look(directory, job, run, rank):
                if keeps(rank, held):
                    continue
                try:
                    remove(Path(held.path))
                except OSError as error:
                    _logger.warning("event=copy_not_removed path=%s reason=%r", held.path, reason_of(error))

    def served(self, digest: str) -> Served | None:
        """Find what another node asks for, own or copied; None: it is not here any more."""
        own = self._own.get(digest)
        for path in (*((own,) if own is not None else ()), *self._paths()):
            try:
                manifest = manifests.read_for(names.manifest_path(path), file=path.name)
                if manifest.digest == digest:
                    return Served(sealed_bytes(path), manifest.paths(path.parent))
            except (CheckpointError, OSError):
                # Gone, or another's by now: whoever asks is answered that it is not here.
                continue
        return None

    def _paths(self) -> Iterator[Path]:
        for path in sorted(self._root.glob("*/run-*/rank-*/*")):
            if names.parse(path.name) is not None:
                yield path

    def _ranks(self, job: str, run: RunId) -> Iterator[tuple[Rank, Path]]:
        for directory in sorted(self._run(job, run).glob("rank-*")):
            match = _RANK.fullmatch(directory.name)
            if match is not None:
                yield Rank(int(match[1])), directory

    def _look(self, directory: Path, job: str, run: RunId, rank: Rank) -> tuple[HeldCheckpoint, ...]:
        """What lies there and fits; what does not is logged once."""
        try:
            found = catalogue.look(directory, None, job=job, run=run, rank=rank)
        except CheckpointError as error:
            self._pass_over(str(directory), str(error))
            return ()
        for one in found.passed_over:
            self._pass_over(one.path, one.reason)
        return found.held

    def _pass_over(self, path: str, reason: str) -> None:
        if path not in self._passed_over:
            self._passed_over.add(path)
            _logger.warning("event=copy_passed_over path=%s reason=%r", path, reason)
