"""A checkpoint between the beginning of its save and its manifest: what it is of, noted before the session moves on."""

from __future__ import annotations

import msgspec

from recovery.checkpoint.manifest import FORMAT, Manifest
from recovery.training.session import Session


class PendingCheckpoint:
    """One checkpoint of this rank that is under way."""

    def __init__(self, session: Session, name: str, *, integrated: bool) -> None:
        """Note where training stands.

        Args:
            session: of this entry, at the step that is saved.
            name: of the file.
            integrated: whether the file holds the full state.
        """
        self.step = session.step
        self.name = name
        self._manifest = Manifest(
            format=FORMAT,
            job=session.job,
            run=session.run,
            rank=session.rank,
            world_size=session.world_size,
            incarnation=session.incarnation,
            generation=session.generation,
            step=session.step,
            epoch=session.epoch,
            step_in_epoch=session.step_in_epoch,
            file=name,
            digest="",
            file_bytes=0,
            versions=session.versions,
            integrated=integrated,
        )

    def manifest(self, digest: str, file_bytes: int) -> Manifest:
        """Complete it with what was written."""
        return msgspec.structs.replace(self._manifest, digest=digest, file_bytes=file_bytes)
