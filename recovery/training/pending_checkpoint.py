"""A checkpoint between the beginning of its save and its manifest: what it is of, noted before the session moves on."""

from __future__ import annotations

import msgspec

from recovery.checkpoint.contribution import Layout, Manifest, ManifestFile
from recovery.training.checkpoint_layout import role_in
from recovery.training.session import Session


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A point between two steps."""

    step: int
    epoch: int
    step_in_epoch: int


def position_of(session: Session) -> Position:
    """Where training stands."""
    return Position(step=session.step, epoch=session.epoch, step_in_epoch=session.step_in_epoch)


class PendingCheckpoint:
    """One checkpoint of this rank that is under way."""

    def __init__(
        self,
        session: Session,
        name: str,
        *,
        layout: Layout,
        replicated: str = "",
        position: Position | None = None,
    ) -> None:
        """Note where training stands.

        Args:
            session: of this entry, at the step that is saved.
            name: of the file.
            layout: how the state is spread over the ranks' files.
            replicated: SHA-256 of the state that all ranks share, of which they hold a part; empty: they do not share one.
            position: where training stood when it was saved; None: where it stands.
        """
        position = position or position_of(session)
        self.step = position.step
        self.name = name
        self.role = role_in(layout)
        """Of its file."""
        self._manifest = Manifest(
            job=session.job,
            run=session.run,
            rank=session.rank,
            world_size=session.world_size,
            incarnation=session.incarnation,
            generation=session.generation,
            step=position.step,
            epoch=position.epoch,
            step_in_epoch=position.step_in_epoch,
            files=(),
            layout=layout,
            replicated=replicated,
            versions=session.versions,
            integrated=layout is Layout.RANK,
        )

    def manifest(self, files: tuple[ManifestFile, ...]) -> Manifest:
        """Complete it with what was written."""
        return msgspec.structs.replace(self._manifest, files=files)
