"""A worker's part at a barrier: it says where its main thread is, stops at a step when asked, and may ask for one before it ends.

A process that is asked to end asks for its rank to be taken over first; a script asks for the end of training. Every rank takes part in that; the
scheduler's part is core/scheduler/barrier_ends.py. Nothing of a barrier outlives the generation.
"""

from __future__ import annotations

from typing_extensions import assert_never

from recovery.core.barrier_messages import (
    BarrierFromScheduler,
    Depart,
    GoOn,
    HandedOver,
    JobSaved,
    NotHandedOver,
    Position,
    SaveAt,
    StopTraining,
    TrainingEnds,
)
from recovery.core.effects import Log
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import (
    EndTraining,
    LeaveAsAsked,
    ResumeTraining,
    Send,
    SetTimer,
    StopAt,
    WorkerEffect,
)
from recovery.core.worker.main_thread import MainThread
from recovery.core.worker.requests import STOPPED, Departure, Requests
from recovery.core.worker.transitions import WorkerState

ANSWER_MS = 500
"""How long a worker that is asked to end waits for the scheduler to begin. It answers in milliseconds; one that hangs must cost little,
since a caller that asks a process to end kills it after some seconds."""


class AtBarrier:
    """What one process has asked, and at which step it was asked to stop."""

    def __init__(
        self, rules: Rules, main_thread: MainThread, requests: Requests, departure: Departure
    ) -> None:
        """Nothing was asked."""
        self._departure = departure
        self._rules, self._main_thread, self._requests = rules, main_thread, requests
        self._asked: Depart | None = None
        """What this process has asked and was not answered yet; None: nothing."""
        self.leaves = False
        """Its main thread must leave, and no standby has the rank. When it does not come back, no other program takes its place, which would know of no signal."""
        self._give_up_ms = 0
        """When it leaves all the same. Used while something is asked."""
        self._stop: StopAt | None = None
        """At which barrier it was last asked to stop, and where; None: at none, or that is over."""
        self._wait_ms = 0
        """How long it waits there. Used while there is a step to stop at."""
        self._let_go_ms = 0
        """When it waits there no longer, whatever becomes of the scheduler. Used while there is a step to stop at."""
        self._stop_asked: StopTraining | None = None
        """What the script has asked for all ranks, said again after each reconnect; None: nothing, or it was answered."""

    def on_stimulus(
        self,
        stimulus: s.DepartAsked | s.TrainingStopAsked | s.Positioned,
        now_ms: int,
        *,
        connected: bool,
    ) -> list[WorkerEffect]:
        """A system or the main thread speaks. `connected`: the scheduler has admitted this process on the connection that stands."""
        match stimulus:
            case s.DepartAsked():
                return self._on_depart_asked(stimulus, now_ms, connected=connected)
            case s.TrainingStopAsked():
                asked = StopTraining(
                    generation=stimulus.generation, step=stimulus.step, reason=stimulus.reason[:1024]
                )
                self._stop_asked = asked
                return [Send(asked)] if connected else []
            case s.Positioned():
                return self._on_positioned(stimulus)
            case _:
                assert_never(stimulus)

    def _on_depart_asked(self, asked: s.DepartAsked, now_ms: int, *, connected: bool) -> list[WorkerEffect]:
        """A system asked this process to end: ask whether its rank can be handed over first."""
        trains = self._main_thread.state is WorkerState.TRAINING and not self._requests.is_done
        may_ask = connected and self._rules.recovery_enabled and self._rules.drain_timeout_ms > 0
        if self._asked is not None or not (trains and may_ask):
            self._asked, self.leaves = None, True
            return [LeaveAsAsked()]
        self._asked = Depart(request_id=asked.request_id, reason=asked.reason[:1024])
        self._give_up_ms = now_ms + self._rules.drain_timeout_ms
        answer_ms = now_ms + min(ANSWER_MS, self._rules.drain_timeout_ms)
        # Where it waits at a step already, the other ranks have waited for it since: its wish puts off no end of that.
        until_ms = min(answer_ms, self._let_go_ms) if self._may_let_go else answer_ms
        return [Send(self._asked), SetTimer(s.WorkerTimer.DEPART, until_ms)]

    def on_message(self, message: BarrierFromScheduler, now_ms: int) -> list[WorkerEffect]:
        """The scheduler speaks of a rank that is to be handed over, this one or another."""
        match message:
            case SaveAt():
                return self._on_save_at(message, now_ms)
            case TrainingEnds():
                return self._on_training_ends(message)
            case GoOn():
                return self.let_go() if self._stop is not None and message.drain == self._stop.drain else []
            case NotHandedOver():
                asked = self._asked is not None and self._asked.request_id == message.request_id
                return self._leave(message.reason, job_ends=message.job_ends) if asked else []
            case HandedOver():
                reason = message.reason
                return [self._departure.exit(STOPPED, reason), *self._main_thread.end(reason)]
            case JobSaved():
                # A launcher's answer.
                return []
            case _:
                assert_never(message)

    def _on_save_at(self, at: SaveAt, now_ms: int) -> list[WorkerEffect]:
        if (
            at.generation != self._main_thread.generation
            or self._main_thread.state is not WorkerState.TRAINING
        ):
            # Its end is on the way here, or its beginning: no barrier outlives either.
            return []
        stop = StopAt(at.drain, at.generation, at.step, at.ends_training, at.wait_ms if at.leaves else 0)
        # Asked again, it has joined: a rank that waits at the step already stays there.
        effects: list[WorkerEffect] = [] if stop == self._stop else [stop]
        self._stop = stop
        wait_ms = at.wait_ms or self._rules.drain_timeout_ms
        if effects or wait_ms > self._wait_ms:
            # The scheduler ends it sooner, and its word has time to come, unless it hangs: training must not wait for it.
            self._wait_ms, self._let_go_ms = wait_ms, now_ms + wait_ms + ANSWER_MS
        if wait_ms > self._rules.drain_timeout_ms:
            # The job is to end, not this process alone, and whoever ends it says how long that may take.
            self._give_up_ms = self._let_go_ms
        if at.ends_training:
            # Only the end of the generation takes it back: a rank that let go by itself would train alone.
            return effects
        until_ms = self._let_go_ms if self._asked is None else min(self._give_up_ms, self._let_go_ms)
        return [*effects, SetTimer(s.WorkerTimer.DEPART, until_ms)]

    @property
    def _may_let_go(self) -> bool:
        """Was its main thread asked to stop at a step of this generation, where it waits no longer than its time?"""
        stop = self._stop
        return stop is not None and stop.generation == self._main_thread.generation and not stop.ends_training

    def _on_training_ends(self, end: TrainingEnds) -> list[WorkerEffect]:
        if end.generation != self._main_thread.generation or not self._main_thread.in_generation:
            return []
        self._stop = self._stop_asked = None
        return [EndTraining(end.generation, end.step, end.reason)]

    def send_again(self) -> list[WorkerEffect]:
        """Say after a reconnect what the script has asked for all ranks, while it waits for that."""
        asked = self._stop_asked
        return [Send(asked)] if asked is not None and asked.generation == self._main_thread.generation else []

    def on_admitted(self) -> list[WorkerEffect]:
        """A scheduler admits this process, which ends a barrier. Where training is to end it is asked again, or hears that it does."""
        if self._stop is not None and self._stop.ends_training:
            self._stop = None
            return []
        return self.let_go()

    def _on_positioned(self, at: s.Positioned) -> list[WorkerEffect]:
        stop = self._stop
        if stop is None or at.generation != stop.generation or at.step not in (None, stop.step):
            # Nobody asks, or not for that step any more.
            return []
        answer = Position(
            drain=stop.drain,
            step=stop.step,
            passed=at.passed,
            stops=at.stops,
            obstacle=at.obstacle[:1024],
            is_over=at.is_over,
        )
        return [Send(answer)]

    def on_timer(self, now_ms: int) -> list[WorkerEffect]:
        """The scheduler has had its time."""
        has_waited = self._may_let_go and now_ms >= self._let_go_ms
        late = f"it took longer than {self._wait_ms / 1000:g} s"
        if self._asked is None:
            if not has_waited:
                return []
            text = f"this process does not wait at a step for the other ranks any longer: {late}"
            return [Log("drain_not_waited_for", text, warning=True), *self.let_go()]
        if has_waited:
            return self._leave(late)
        limit = f"{self._rules.drain_timeout_ms / 1000:g} s (MS_DRAIN_TIMEOUT)"
        has_begun = self._stop is not None and self._stop.generation == self._main_thread.generation
        is_late = has_begun and now_ms >= self._give_up_ms
        return self._leave(f"it took longer than {limit}" if is_late else "the scheduler does not answer")

    def on_disconnected(self) -> list[WorkerEffect]:
        """A worker that has asked to be handed over has nobody to ask any more.

        One that waits at a step waits on, until it is admitted again or has waited long enough: a scheduler that hangs may still decide
        by what it has heard before.
        """
        return self._leave("the connection to the scheduler closed") if self._asked is not None else []

    def advance(self) -> list[WorkerEffect]:
        """Look, after a stimulus, whether there is still a step to hand the rank over at; what is done before all else.

        A script replaces itself when its generation ends, and the program that follows would know of no signal.
        """
        if self._asked is None or self._main_thread.state is WorkerState.TRAINING:
            return []
        if self._main_thread.state is WorkerState.LEAVING:
            self._asked = None
            return []
        return self._leave("its generation is over")

    def let_go(self) -> list[WorkerEffect]:
        """No step is waited at any more: the barrier was given up."""
        stop, self._stop = self._stop, None
        return [ResumeTraining()] if stop is not None else []

    def _leave(self, reason: str, *, job_ends: bool = False) -> list[WorkerEffect]:
        self._asked, self._stop, self.leaves = None, None, True
        if job_ends:
            return [
                Log("leaves_with_its_job", f"this process ends, as all of its job: {reason}"),
                LeaveAsAsked(),
            ]
        text = f"this process leaves without a standby having its rank: {reason}"
        return [Log("not_handed_over", text, warning=True), LeaveAsAsked()]
