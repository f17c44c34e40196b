"""A checkpoint between the beginning of its save and its manifest: what it is of, noted before the session moves on."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from recovery.checkpoint.contribution import Layout, Manifest, ManifestFile
from recovery.checkpoint.position import Position
from recovery.core.messages import HeldCheckpoint
from recovery.core.policy.replica_difference import joint_digest
from recovery.training.checkpoint_layout import role_in
from recovery.training.session import Session
from recovery.training.state import HasReplica

_logger = logging.getLogger("recovery.training")


class AppliedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step that a checkpoint is of, and where training goes on behind it."""

    epoch: int
    step_in_epoch: int
    position: Position


def applied_step(session: Session) -> AppliedStep:
    """The newest."""
    return AppliedStep(epoch=session.epoch, step_in_epoch=session.step_in_epoch, position=session.position)


class PendingCheckpoint:
    """One checkpoint of this rank that is under way."""

    def __init__(
        self,
        session: Session,
        name: str,
        *,
        layout: Layout,
        replicated: str = "",
        of: AppliedStep | None = None,
        in_memory: bool = False,
    ) -> None:
        """Note where training stands.

        Args:
            session: of this entry, at the step that is saved.
            name: of the file.
            layout: how the state is spread over the ranks' files.
            replicated: SHA-256 of the state that all ranks share, of which they hold a part; empty: they do not share one.
            of: the step that it is of; None: the newest.
            in_memory: it is to lie in memory.
        """
        self._in_memory = in_memory
        of = of or applied_step(session)
        self._session = session
        self._replica: Mapping[str, str] = {}
        """Fingerprints of what all ranks must have alike in it; empty: nothing is compared."""
        self._is_settled = False
        """Is it known what came of it?"""
        self.step = of.position.step
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
            step=self.step,
            epoch=of.epoch,
            step_in_epoch=of.step_in_epoch,
            files=(),
            layout=layout,
            replicated=replicated,
            versions=session.versions,
            integrated=layout is Layout.RANK,
            position=of.position,
        )

    def note_replica(self) -> None:
        """It is of the session's state as it is now, of which all ranks must have a part alike. What is saved once for all is compared anyway."""
        state: object = self._session.state
        is_compared = self._session.compares_replicas and self._session.world_size > 1
        if is_compared and not self._manifest.replicated and isinstance(state, HasReplica):
            try:
                self._replica = state.replica()
                self._manifest = msgspec.structs.replace(
                    self._manifest, replicated=joint_digest(self._replica)
                )
            except Exception as error:  # noqa: BLE001 - of a program's own tensors and optimizers; the save goes on without
                _logger.warning(
                    "event=replicas_not_compared step=%d reason=%r",
                    self.step,
                    f"{type(error).__name__}: {error}",
                )

    def manifest(self, files: tuple[ManifestFile, ...]) -> Manifest:
        """Complete it with what was written."""
        return msgspec.structs.replace(self._manifest, files=files)

    def published(self, held: HeldCheckpoint) -> None:
        """It is complete and durable."""
        self._is_settled = True
        self._session.checkpoint_published(held, self._replica)

    def failed(self, reason: str) -> None:
        """It was not saved, or what comes behind its save has failed: then it is one all the same."""
        if not self._is_settled:
            self._is_settled = True
            self._session.checkpoint_not_saved(self.step, reason, in_memory=self._in_memory)
