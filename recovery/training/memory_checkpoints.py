"""Checkpoints in memory: the same contribution as on the disk, more often, for the loss of a process that leaves its host alone."""

from __future__ import annotations

import logging
from pathlib import Path

from recovery.checkpoint import catalogue, memory_tier, names
from recovery.checkpoint.contribution import Layout, Manifest
from recovery.checkpoint.durable_files import reason_of
from recovery.checkpoint.memory_tier import MemoryHome
from recovery.checkpoint.retention import remove
from recovery.core.messages import HeldCheckpoint
from recovery.core.policy.retention import kept_in_memory
from recovery.errors import CheckpointError
from recovery.training.pending_checkpoint import PendingCheckpoint
from recovery.training.saver import Saver, Target
from recovery.training.session import Session
from recovery.worker import memory_tier_hold

_logger = logging.getLogger("recovery.training")

_SHARE = 4
"""The ranks of a host take a quarter of what is free, where nobody says how much: data loaders and the next allocation need the rest."""


class MemoryCheckpoints:
    """One rank's checkpoints in memory, over one generation. Without MS_MEMORY_CHECKPOINT_STEPS it does nothing."""

    def __init__(self) -> None:
        """Nothing is made before `begin`."""
        self._layout = Layout.RANK
        self._every_steps = 0
        """0: there are none."""
        self._prefix, self._directory, self._bytes_max = "", Path(), 0
        self._too_little = -1
        """Bytes that did not suffice for one; nothing is tried before more are left."""
        self._saver = Saver(
            "recovery-save-memory", published=self._published, failed=PendingCheckpoint.failed, is_urgent=True
        )

    def begin(self, session: Session, prefix: str, layout: Layout) -> None:
        """Take this rank's directory, and clear up what other jobs and a rolled-back history have left.

        Args:
            session: at the step where the generation begins.
            prefix: of the files' names.
            layout: of the files on the disk. What ranks write there together, each has for itself in memory: no peer's end takes a part.
        """
        settings = session.memory
        if session.local_rank == 0:
            memory_tier.clear_up(settings.base)
        if not settings.every_steps or not session.recovery_enabled:
            return
        try:
            self._directory = _home_of(session).directory(session.run, session.rank)
        except OSError as error:
            _logger.warning(
                "event=memory_checkpoints_off path=%s reason=%r checkpoints go to the disk alone",
                settings.base,
                reason_of(error),
            )
            return
        self._prefix, self._every_steps = prefix, settings.every_steps
        self._layout = Layout.RANK if layout is Layout.SHARED else layout
        session.checkpoint_directory(self._directory, prefix)
        held = [checkpoint for checkpoint in self._held(session) if checkpoint.step <= session.step]
        self._keep_only(held)
        share = (memory_tier.free_bytes(settings.base) + _bytes_of(held)) // _SHARE
        self._bytes_max = settings.bytes_max or share // session.local_world_size
        session.before_done(self.join)
        session.on_generation_end(self.join)

    def is_due(self, session: Session) -> bool:
        """Is this a step of the schedule? It is by the number of the step, which all ranks share."""
        return self._every_steps > 0 and session.step % self._every_steps == 0

    def save(self, session: Session, *, behind_steps: bool) -> None:
        """Save the state of this step.

        Args:
            session: at the step.
            behind_steps: a state that cannot be captured is copied, and a thread writes the copy; False: the step waits for the write.
        """
        assert session.state is not None, "callbacks run inside steps()"
        self.join()
        left_bytes = self._make_space(session)
        if left_bytes <= self._too_little:
            return
        name = names.file_name(self._prefix, epoch=session.epoch, step_in_epoch=session.step_in_epoch)
        save = PendingCheckpoint(session, name, layout=self._layout, in_memory=True)
        save.note_replica()
        target = Target(session, self._directory, left_bytes, self._refuse)
        self._saver.save(target, save, behind_steps=behind_steps)

    def join(self) -> None:
        """Wait for the save under way."""
        self._saver.join()

    def _make_space(self, session: Session) -> int:
        """Remove what no plan needs any more; how many bytes are left for one more."""
        kept = kept_in_memory(
            self._held(session),
            committed_step=session.committed_step,
            newest_on_disks=session.disk_commits.newest_step,
            pinned=session.pinned_in_memory,
        )
        self._keep_only(kept)
        return self._bytes_max - _bytes_of(kept)

    def _refuse(self, left_bytes: int) -> str:
        """Say once that it does not fit, and try no more before more is left."""
        self._too_little = left_bytes
        return f"it takes more than the {left_bytes} bytes that are left of {self._bytes_max} (MS_MEMORY_CHECKPOINT_BYTES)"

    def _published(self, session: Session, save: PendingCheckpoint, manifest: Manifest, path: Path) -> None:
        _home_of(session).note_use()
        save.published(catalogue.held_of(manifest, path))

    def _held(self, session: Session) -> list[HeldCheckpoint]:
        """What lies there, newest first."""
        try:
            found = catalogue.scan(
                self._directory, self._prefix, job=session.job, run=session.run, rank=session.rank
            )
        except CheckpointError as error:
            _logger.warning("event=memory_checkpoints_not_found %s", error)
            return []
        return list(found)

    def _keep_only(self, kept: list[HeldCheckpoint]) -> None:
        """Remove everything else: memory is too scarce for what is damaged, rolled back or was never finished."""
        pinned = {Path(checkpoint.path).stem for checkpoint in kept}
        for file in sorted(self._directory.iterdir()):
            if file.stem in pinned and not file.name.startswith("."):
                continue
            try:
                if names.parse(file.name) is not None:
                    remove(file)
                else:
                    file.unlink(missing_ok=True)
            except OSError as error:
                _logger.warning("event=checkpoint_not_removed path=%s reason=%r", file, reason_of(error))


def _home_of(session: Session) -> MemoryHome:
    assert session.recovery_path is not None, "without recovery there are no checkpoints in memory"
    return memory_tier_hold.hold(
        session.memory.base, session.job, session.recovery_path, lambda: session.job_is_over
    )


def _bytes_of(held: list[HeldCheckpoint]) -> int:
    return sum(checkpoint.file_bytes for checkpoint in held)
