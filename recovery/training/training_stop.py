"""`session.stop()`: the script ends training before its last epoch, at one step of all ranks. The scheduler's part is core/scheduler/training_end.py."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from recovery.core.ids import Generation
from recovery.core.worker import stimuli as s
from recovery.errors import UsageError
from recovery.worker.service import WorkerService

_logger = logging.getLogger("recovery.training")


class TrainingStop:
    """Of one entry. Main thread."""

    def __init__(self, service: WorkerService, generation: Generation) -> None:
        """Nothing is asked, unless the plan says where training ends."""
        self._service, self._generation = service, generation
        self._reason: str | None = None
        """Of this rank's script; None: it has not asked."""
        self._is_told = False
        self.refusal = ""
        """Why this training cannot be ended so; empty: it can. Set by an integration that leads the loop itself."""

    @property
    def is_open(self) -> bool:
        """Has the script asked, and is it not known yet where training ends?"""
        return self._reason is not None and not self.step

    @property
    def step(self) -> int:
        """The step at which training ends; 0: behind its last epoch, as far as is known."""
        return self._service.training_control.stop_point.end

    def is_over(self, step: int) -> bool:
        """Does training end at this step?"""
        return 0 < self.step <= step

    def ask(self, reason: object) -> None:
        """The script asks.

        Args:
            reason: for people, who see it within a line; whatever a script calls a reason: a loss, an exception, None.

        Raises:
            UsageError: a framework leads this training, which ends as that does.
        """
        refusal = self.refusal or self._service.training_control.drain_unsupported_reason
        if refusal:
            raise UsageError(
                field="session.stop()",
                reason=f"cannot end this training: {refusal}",
                next_step="End it as the framework does, by its own early stopping (docs/howto/early_stopping.md).",
            )
        if self._reason is None:
            self._reason = " ".join(str("" if reason is None else reason).split())

    def agree(self, step: int) -> None:
        """Behind a step: if the script has asked, wait until it is known at which step all ranks stop.

        Before this step is saved, so that no checkpoint of it leads to steps behind it.

        Raises:
            GenerationInterrupted: it is over; the next plan says where training ends.
        """
        if self._is_told or not self.is_open:
            return
        self._is_told = True
        control = self._service.training_control
        control.stop_point.hold(step)
        self._service.post(s.TrainingStopAsked(self._generation, step, self._reason or ""))
        control.await_go_on(int(self._generation), step)

    @contextlib.contextmanager
    def around(
        self,
        loop: AbstractContextManager[None],
        phases: AbstractContextManager[None],
        step: Callable[[], int],
    ) -> Iterator[None]:
        """Have nobody wait for this rank at a step behind the end of its loop.

        Args:
            loop: the block around it, which an exit leaves before its end.
            phases: the block in which parts of steps are told.
            step: gives the last one.
        """
        stop_point = self._service.training_control.stop_point
        stop_point.enter_loop()
        with loop, phases:
            yield
        stop_point.leave_loop(step())
        self._service.post(s.Positioned(self._generation, step(), is_over=True))

    def log(self, step: int) -> None:
        """The loop has ended: where `stop` was the reason, tell it."""
        if self.is_over(step):
            why = self._service.training_control.end_reason
            _logger.info("event=training_stopped step=%d reason=%r", step, why)

    def refuse_more(self, step: int) -> None:
        """A loop that is not ours comes with another step.

        Raises:
            UsageError: training has ended.
        """
        end = self.step
        if self.is_over(step - 1):
            raise UsageError(
                field="session.stop()",
                reason=f"has ended training at step {end}, and the loop goes on to step {step}",
                next_step="Leave the loop where session.stopped is true, behind session.stop_if_asked().",
            )

    def check_left(self, *, in_loop: bool) -> None:
        """The training function has returned.

        Args:
            in_loop: by a `break` or a `return` out of its loop.

        Raises:
            UsageError: it has asked for a stop, and then left the loop without its being carried out.
        """
        if not self.is_open:
            return
        if in_loop and not self._is_told:
            raise UsageError(
                field="session.stop()",
                reason="was called, and the loop was left by a break or a return before the step had ended: nothing was saved there",
                next_step="Take the break out: the loop ends by itself at the end of the step, on all ranks.",
            )
        _logger.info("event=stop_not_needed training has ended before all ranks could stop at one step")
