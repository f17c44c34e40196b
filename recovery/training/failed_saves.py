"""The saves of one generation that failed: each is said, and too many in a row end training."""

from __future__ import annotations

import logging

from recovery.core.messages import HeldCheckpoint
from recovery.core.tiers import tier_of
from recovery.core.worker import stimuli as s
from recovery.errors import CheckpointError
from recovery.worker.service import WorkerService

_logger = logging.getLogger("recovery.training")


class FailedSaves:
    """Of one rank. Those in memory are said and never end training: the disk has what they lack."""

    def __init__(self, service: WorkerService) -> None:
        """None has failed."""
        self._service = service
        self._in_a_row, self._last = 0, ""

    def saved(self, checkpoint: HeldCheckpoint) -> None:
        """One was saved."""
        if tier_of(checkpoint.path).is_durable:
            self._in_a_row = 0

    def failed(self, step: int, reason: str, *, in_memory: bool) -> None:
        """One was not. From any thread."""
        if in_memory:
            line = (
                "event=memory_checkpoint_not_saved step=%d reason=%r checkpoints on the disk are not affected"
            )
        else:
            line = "event=checkpoint_not_saved step=%d training goes on, older checkpoints are untouched: %s"
            self._in_a_row, self._last = self._in_a_row + 1, reason if reason.endswith(".") else f"{reason}."
        _logger.warning(line, step, reason)
        self._service.post(s.SaveFailed(self._service.new_request(), step, reason, in_memory))

    def check(self) -> None:
        """Between two steps.

        Raises:
            CheckpointError: as many in a row as MS_FAILED_SAVES_MAX allows have failed.
        """
        if 0 < self._service.failed_saves_max <= self._in_a_row:
            which = f"{self._in_a_row} saves in a row (MS_FAILED_SAVES_MAX)"
            raise CheckpointError("SAVES_FAILED", which=which, reason=self._last)

    def check_last(self) -> None:
        """Behind training, once no save is under way: what it has trained last is to be saved. MS_FAILED_SAVES_MAX=0 switches that off too.

        Raises:
            CheckpointError: the newest save has failed.
        """
        if self._service.failed_saves_max and self._in_a_row:
            raise CheckpointError("SAVES_FAILED", which="the last save of the training", reason=self._last)
