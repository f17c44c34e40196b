"""`ModelCheckpoint(layout="shared")`: what all ranks have in common is written once, spread over them, into one directory.

A rank's save needs no other rank. That all of them save the same state is seen where they save it: each names the state's fingerprint in
its manifest, and compares with the manifests that are there.
"""

from __future__ import annotations

import logging
from pathlib import Path

from recovery.checkpoint import manifest as manifests
from recovery.checkpoint import names
from recovery.checkpoint.contribution import FileRole, Manifest
from recovery.checkpoint.publish import Content
from recovery.errors import CheckpointManifestError, CheckpointStateError, UsageError
from recovery.frameworks import FRAMEWORKS
from recovery.training import shared_names
from recovery.training.session import Session
from recovery.training.shared_directory_probe import note_in
from recovery.training.state import SharedPieces, SharesState

_logger = logging.getLogger("recovery.training")


class SharedLayout:
    """What a ModelCheckpoint of this layout does otherwise, in one generation."""

    def __init__(self, session: Session, directory: Path, wanted_prefix: str) -> None:
        """Find the names, and leave a note for the other ranks.

        Raises:
            UsageError: the session's state cannot be shared, or the prefix cannot begin a name.
            CheckpointManifestError: the directory cannot be listed.
            OSError: the directory cannot be written to.
        """
        state: object = session.state
        if not isinstance(state, SharesState):
            able = " or ".join(each.shared_state for each in FRAMEWORKS if each.shared_state)
            raise UsageError(
                field='layout="shared"',
                reason=f"{type(state).__name__} cannot be shared by ranks",
                next_step=f"Give {able}, or leave the layout as it is.",
            )
        self._state = state
        prefix = shared_names.free_prefix(
            directory, wanted_prefix, job=session.job, run=session.run, world_size=session.world_size
        )
        self.prefix = shared_names.rank_prefix(prefix, session.rank)
        """Of this rank's files."""
        self._session = session
        self._directory = note_in(directory, prefix, session)
        self._others_seen = False
        self._failure: CheckpointStateError | None = None

    def after_step(self) -> None:
        """In the main thread, when all ranks have made a step: see that all have this directory, and stop where they differ.

        Raises:
            CheckpointError: another rank's note is not here.
            CheckpointStateError: the ranks do not have the same state.
        """
        if not self._others_seen:
            self._directory.await_others(self._session.check)
            self._others_seen = True
        if self._failure is not None:
            raise self._failure

    def take(self) -> SharedPieces:
        """Copy what this rank writes of the state of now."""
        return self._state.take_shared(rank=self._session.rank, world_size=self._session.world_size)

    def compare(self, manifest: Manifest, path: Path) -> bool:
        """Compare a save with what other ranks have saved of its step: do they share this state? Any thread.

        The rank that saves last sees all the others. What differs ends training at the next step; the step is never committed.
        """
        for rank in range(manifest.world_size):
            other = shared_names.of_rank(path, rank, own_rank=manifest.rank)
            assert other is not None, "a save has the name that this layout gave it"
            if rank != manifest.rank and self._differs(manifest, other):
                self._failure = _differing(manifest.rank, rank, self._first_that_differs(path, other))
                _logger.error("event=state_not_shared step=%d %s", manifest.step, self._failure)
                return False
        return True

    def _differs(self, manifest: Manifest, other: Path) -> bool:
        try:
            found = manifests.read_for(names.manifest_path(other), file=other.name)
        except CheckpointManifestError:
            # Not saved yet, or not readable: the other rank compares, or the load does.
            return False
        # An earlier generation's file of this step is about to be written over.
        same = ("job", "run", "generation", "world_size", "step")
        if any(getattr(found, field) != getattr(manifest, field) for field in same):
            return False
        return found.replicated != manifest.replicated

    def _first_that_differs(self, path: Path, other: Path) -> str:
        mine = self._state.fingerprints(shared_names.side_path(path))
        theirs = self._state.fingerprints(shared_names.side_path(other))
        return next((name for name in mine if mine[name] != theirs.get(name)), "")


def contents(name: str, pieces: SharedPieces) -> list[Content]:
    """The files of a rank's save, the one that names it first."""
    side = shared_names.side_path(Path(name)).name
    return [Content(name, pieces.write_part, FileRole.PART), Content(side, pieces.write_side, FileRole.SIDE)]


def _differing(rank: int, other: int, part: str) -> CheckpointStateError:
    return CheckpointStateError(
        field=part or "TrainState",
        reason=f"it is not the same on rank {rank} and rank {other}, and ModelCheckpoint(layout='shared') saves it once for all",
        next_step=f"Give TrainState(per_rank=[{part or '...'!r}]) if it differs rightly, else see why the ranks have drifted apart.",
    )
