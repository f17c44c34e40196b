"""Planned departures: where main threads stop, and what is promised to who departs, who waits and who goes on.

I26  a rank that is handed over loses no step; who stopped for it goes on; who was asked to end ends; nobody else is sent away;
     a job that is saved for its end has all ranks at that step
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.barrier_messages import GoOn, HandedOver, JobSaved, NotHandedOver
from recovery.core.effects import Answer, Persist
from recovery.core.policy.backoff import SHUTDOWN_GRACE_MS
from recovery.core.records import EventKind, EventRecord
from recovery.core.scheduler.barrier import Barrier
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.leave_requests import NO_RANK_STOPS
from recovery.core.worker import stimuli as s
from recovery.core.worker.barrier import ANSWER_MS
from recovery.core.worker.effects import EndTraining, LeaveAsAsked, ResumeTraining, StopAt
from recovery.core.worker.transitions import WorkerState
from recovery.worker.stop_step import StopPoint
from tests.simulation.slots import slot_name

if TYPE_CHECKING:
    from recovery.core.worker.connection import Identity
    from tests.simulation.process import Process
    from tests.simulation.scheduler import SchedulerProcess
    from tests.simulation.world import World

STAGES = ("asked where", "asked to stop", "stopped", "handed over")
"""At which something may happen to a drain: a process hears the question, hears the step, waits there, was sent away."""

_UNREACHABLE_MS = 20_000
"""By then whoever was cut off has reached a scheduler again."""

_NOBODY_ENDS_IT = 0.3
_CANNOT_SAVE = 0.03
"""How many main threads find at the step that nothing saves out of turn."""


class Stop:
    """Where the main thread of one process stops: the real stop point, and a main thread that asks it."""

    def __init__(self, process: Process) -> None:
        """Nobody asks.

        Args:
            process: whose.
        """
        self._process, self._world = process, process.world
        self._point = StopPoint()
        self.is_held_back, self.waits = False, 0
        """Waits at this step; 0: it does not."""
        self._is_before_save = False
        """It waits before what is due at the step is saved: its script has ended training."""
        self.asked = 0
        """How often it was asked to stop at a step; each time it may wait as long again."""

    def begin(self, plan: m.Rollback) -> None:
        """The main thread is let into a generation."""
        self._point.begin(plan.generation, plan.step, plan.ends_at)
        self.waits, self._is_before_save = 0, False
        if plan.ends_at:
            self._world.training_end.heard(plan, plan.ends_at)

    def ends_training(self, plan: m.Rollback, step: int) -> bool:
        """Has the script ended training at this step? Then its main thread waits, unless it is known where all ranks stop."""
        if self._point.end or not self._world.training_end.asks(plan, step):
            return False
        self._point.hold(step)
        self.waits, self._is_before_save = step, True
        self._world.clock.seen["a script asked for the end of training"] += 1
        self._process.handle(s.TrainingStopAsked(plan.generation, step, "the loss is low enough"))
        return True

    def is_end(self, step: int) -> bool:
        """Does training end at this step?"""
        return 0 < self._point.end <= step

    @property
    def saves(self) -> bool:
        """Is it to save where it stops?"""
        return self._point.saves

    def passes(self, step: int) -> bool:
        """Is the main thread, behind a step, asked for none? Else it saves, and waits."""
        if self._point.passes(step):
            return True
        self.waits = step
        self._world.clock.seen["a main thread stopped at a step"] += 1
        self._must_go_on()
        self._world.drains.reached("stopped", self._process)
        return False

    def _must_go_on(self) -> None:
        # For the end of training it waits as long as its generation lasts.
        if self.waits and self.saves:
            self._world.drains.waits(self._process)

    def cannot_save(self) -> bool:
        """It finds nothing that saves out of turn."""
        is_on = self._world.shape.spares.drains
        if self.waits and is_on and self._world.clock.draw("drains").random() < _CANNOT_SAVE:
            at, plan = self.waits, self._process.plan
            assert plan is not None, "it trains"
            self._process.handle(s.Positioned(plan.generation, at, step=at, obstacle="nothing saves here"))
            return True
        return False

    def do(self, effect: StopAt | EndTraining | ResumeTraining | LeaveAsAsked) -> None:
        """What the machine wants of the main thread."""
        if isinstance(effect, StopAt):
            if effect.ends_training:
                self._world.training_end.named(effect.step)
            passed, stops = self._point.stop_at(
                effect.generation, effect.step, ends_training=effect.ends_training
            )
            self.asked += effect.step > 0
            self._must_go_on()
            if effect.step and not stops:
                self._world.clock.seen["a main thread had passed the step"] += 1
            self._process.handle(s.Positioned(effect.generation, passed, stops, step=effect.step))
            self._world.drains.reached("asked to stop" if effect.step else "asked where", self._process)
        elif isinstance(effect, EndTraining):
            self._end_training(effect)
        elif isinstance(effect, ResumeTraining):
            self._point.forget()
        else:
            self._leave()
            return
        self._look()

    def _look(self) -> None:
        """Does it still wait?"""
        process, step = self._process, self.waits
        if not step or process.phase != "training" or not process.alive or process.plan is None:
            return
        if self._point.end != step and not self._point.passes(step):
            return
        self.waits = 0
        if self._is_before_save:
            self._is_before_save = False
            process.end_step(process.plan, step)
        elif process.is_over:
            process.finish(step)
        else:
            self._world.clock.seen["a main thread that had stopped trained on"] += 1

    def _end_training(self, end: EndTraining) -> None:
        """As the executor does."""
        process = self._process
        if process.plan is not None and process.plan.generation == end.generation:
            self._world.training_end.heard(process.plan, end.step)
        if passed := self._point.end_at(end.generation, end.step):
            self._world.clock.seen["a rank was behind the end of training"] += 1
            process.handle(s.DataPlaneBroke(end.generation, passed, f"trained to step {passed}"))

    # --- being asked to end ---------------------------------------------------------------------------------------------

    def signal(self) -> None:
        """SIGTERM: the first one is held back."""
        process = self._process
        if process.phase == "hung":
            # Its main thread runs no handler.
            return
        process.clock.say(f"{process.name} is sent SIGTERM")
        self._world.drains.must_end(process)
        first, self.is_held_back = not self.is_held_back, True
        if first:
            process.handle(s.DepartAsked(process.request(), "SIGTERM"))
        else:
            self._leave()

    def _leave(self) -> None:
        """The signal reaches the main thread."""
        process = self._process
        assert self.is_held_back, f"I26: nobody has asked {process.name} to leave"
        if process.phase == "hung":
            self._world.clock.seen["a signal did not reach a main thread that hung"] += 1
        elif self._hangs():
            self._world.clock.seen["a main thread that was to leave did not come back"] += 1
            process.phase = "hung"
        elif self._world.shape.scripts:
            process.clock.say(f"{process.name} is ended by SIGTERM")
            self._world.kill(process)
        else:
            self._raise()

    def _hangs(self) -> bool:
        """Its generation ends with it, and it does not come back. One that has come back already may be yet to be heard of: its process was paused."""
        process = self._process
        is_stopping = process.machine.state is WorkerState.STOPPING and process.plan is not None
        return is_stopping and self._world.clock.draw("drains").random() < self._world.hanging

    def _raise(self) -> None:
        process = self._process
        if process.phase == "raised":
            return
        if process.plan is not None:
            self._world.parted(process, process.plan)
            process.phase = "raised"
        process.handle(s.StopAsked(process.request(), "SIGTERM"))


class DrainPromises:
    """Who departs, who waits for it, and what became of that."""

    def __init__(self, world: World) -> None:
        """Nobody was asked.

        Args:
            world: in which.
        """
        self.world, self.clock = world, world.clock
        self.checked = 0
        self.on_stage: dict[str, list[Callable[[Process], None]]] = {stage: [] for stage in STAGES}
        """By stage: the first is called with the next process that gets there."""
        self._named: set[tuple[str, int]] = set()
        """Whom a person has named: id and scheduler process."""
        self._must_end: list[Identity] = []
        self._applied: dict[tuple[str, int, int], int] = {}
        """By job, run and generation: the newest step that a rank has applied. A lost store's numbers are given again to the next job."""

    def reached(self, stage: str, process: Process) -> None:
        """A process is at a stage of a drain."""
        if self.on_stage[stage]:
            self.on_stage[stage].pop(0)(process)

    def stepped(self, plan: m.Rollback, step: int) -> None:
        """A rank has applied a step."""
        key = plan.job, plan.run, plan.generation
        self._applied[key] = max(self._applied.get(key, 0), step)

    def _applied_in(self, scheduler: SchedulerProcess, drain: Barrier) -> int:
        """The newest step that a rank has applied in the generation of a drain."""
        job = scheduler.machine.state.job
        return self._applied.get((job.job, job.run, drain.generation), 0)

    # --- everybody goes on, or ends -------------------------------------------------------------------------------------

    @property
    def _drain_ms(self) -> int:
        """The longest that a drain takes, by anybody's clock."""
        return int(self.world.rules.drain_timeout_ms * (1 + 2 * self.world.shape.drift)) + ANSWER_MS + 100

    def waits(self, process: Process) -> None:
        """It stopped at a step: it goes on, or its generation ends, within the time of a drain."""
        plan, stop = process.plan, process.stop_asked
        step, asked = stop.waits, stop.asked

        def goes_on() -> bool:
            over = not process.alive or process.plan is not plan or process.phase != "training"
            return over or (stop.waits, stop.asked) != (step, asked)

        self._within(self._drain_ms, process, goes_on, f"{process.name} waits at step {step} for ever")

    def must_end(self, process: Process, *, patience_ms: int = 0) -> None:
        """Somebody has asked its process to end."""
        identity = process.identity
        if any(one is identity for one in self._must_end):
            return
        self._must_end.append(identity)

        def has_ended() -> bool:
            return all(one.identity is not identity for one in self.world.living)

        what = f"{process.name} was asked to end and lives on"
        limit_ms = self._drain_ms + SHUTDOWN_GRACE_MS + self.world.rules.abort_timeout_ms + patience_ms
        self._within(limit_ms, process, has_ended, what)

    def _within(
        self, limit_ms: int, process: Process, is_so: Callable[[], bool], what: str, since: int = -1
    ) -> None:
        """It is so after this time, in which the process was not paused."""
        since = self.clock.now if since < 0 else since
        self.clock.later(limit_ms, partial(self._look, limit_ms, process, is_so, what, since))

    def _look(
        self, limit_ms: int, process: Process, is_so: Callable[[], bool], what: str, since: int
    ) -> None:
        self.checked += 1
        if is_so() or self.world.verdict:
            return
        same = [one for one in self.world.living if one.identity is process.identity]
        paused_until = max((one.frozen_until for one in same), default=0)
        assert paused_until > since, f"I26: {what}"
        self._within(max(1, paused_until - self.clock.now) + limit_ms, process, is_so, what, self.clock.now)

    # --- the scheduler --------------------------------------------------------------------------------------------------

    def named(self, scheduler: SchedulerProcess, names: tuple[str, ...]) -> None:
        """A person wants these to be handed over."""
        self._named |= {(name, scheduler.number) for name in names}

    def after_all(self, scheduler: SchedulerProcess, effects: list[SchedulerEffect]) -> None:
        """Look at what a drain has come to."""
        drain = scheduler.machine.state.barrier
        writes = [effect for effect in effects if isinstance(effect, Persist)]
        for write in writes:
            if any(isinstance(step, Answer) and isinstance(step.message, HandedOver) for step in write.then):
                # By the row: the next process of its id, which waited, may be in since this very stimulus. Who asks again has none.
                for row in write.records:
                    if isinstance(row, EventRecord) and row.kind is EventKind.NODE_LEFT:
                        assert drain is not None, "one that was begun"
                        self._sent_away(scheduler, drain, str(row.node_id))
        told = [one for write in writes for one in write.records if isinstance(one, EventRecord)]
        # Who is refused at once stops at none.
        kinds = {one.kind for one in told if NO_RANK_STOPS not in one.reason}
        self.clock.seen["a drain was begun"] += EventKind.DRAIN_BEGUN in kinds
        if EventKind.DRAIN_ENDED in kinds:
            assert drain is not None, "one that was begun"
            self._ended(scheduler, drain, writes)

    def _sent_away(self, scheduler: SchedulerProcess, drain: Barrier, name: str) -> None:
        """Only who was asked, and when nobody goes on."""
        self.checked += 1
        was_asked = any(one.node_id == name for one in self._must_end)
        assert was_asked or (name, scheduler.number) in self._named, f"I26: nobody asked {name} to depart"
        applied = self._applied_in(scheduler, drain)
        assert applied == drain.step, f"I26: {name} is sent away at step {drain.step}, {applied} is applied"
        process = self.world.slots[slot_name(name)].process
        if process is not None:
            self.reached("handed over", process)

    def answered(self, scheduler: SchedulerProcess, answer: Answer) -> None:
        """Who is sent away, and it is written, ends; also when it does not hear of it."""
        wire = scheduler.wires.get(answer.connection)
        if isinstance(answer.message, HandedOver) and wire is not None:
            self.must_end(wire.near, patience_ms=4 * self.world.rules.lease_ms + _UNREACHABLE_MS)
        if isinstance(answer.message, JobSaved) and not answer.message.obstacle:
            self._end_job()

    def _end_job(self) -> None:
        """The launchers of all hosts end their processes, each soon; or the one that asked is gone, and nobody does."""
        draw = self.clock.draw("job stops")
        if draw.random() < _NOBODY_ENDS_IT:
            self.clock.seen["nobody ended a job that was saved for that"] += 1
            return
        for process in self.world.living:
            if process.role is m.Role.WORKER:
                self.clock.later(draw.choice((1, 5, 100)), partial(self._sent_sigterm, process))

    def _sent_sigterm(self, process: Process) -> None:
        if process.alive:
            process.stop_asked.signal()

    def _ended(self, scheduler: SchedulerProcess, drain: Barrier, writes: list[Persist]) -> None:
        self.checked += 1
        self.clock.say(f"drain {drain.number} ended: {drain.outcome}")
        state = scheduler.machine.state
        if drain.handed_over:
            self.clock.seen["a drain was handed over"] += 1
            self.clock.seen["several ranks were handed over at once"] += len(drain.departing) > 1
            step = state.generations[-1].step
            assert step == drain.step, f"I26: handed over at {drain.step}, the plan goes to {step}"
            applied = self._applied_in(scheduler, drain)
            assert applied == step, f"I26: handed over at step {step}, and step {applied} was applied"
            return
        if drain.saved:
            self.clock.seen["a job was saved for its end"] += 1
            applied = self._applied_in(scheduler, drain)
            assert applied == drain.step, f"I26: saved at step {drain.step}, and step {applied} was applied"
            return
        self.clock.seen["a job was not saved for its end"] += drain.ends_job
        heard = [step for write in writes for step in write.then if isinstance(step, Answer)]
        if "no standby has taken" in drain.outcome:
            self.clock.seen["a rank that had left was not taken over in time"] += 1
        self.clock.seen["a rank let go before it heard of the hand-over"] += "trained on" in drain.outcome
        self.clock.seen["a drain was given up"] += 1
        let_go = {one.connection for one in heard if isinstance(one.message, GoOn)}
        answered = {one.message.request_id for one in heard if isinstance(one.message, NotHandedOver)}
        if not let_go:
            # It ended after the hand-over, when nobody waits any more.
            return
        missed = [
            one.name
            for one in self.world.living
            if one.stop_asked.waits and one.plan is not None and one.plan.generation == drain.generation
            if one.wire is not None and one.wire.number not in let_go
            if state.speaker(one.wire.number) is not None
        ]
        assert not missed, f"I26: a drain was given up, and {missed} hear nothing of it"
        waiting = {
            request
            for name, request in drain.departing.items()
            if request is not None and state.nodes[name].connection is not None
            # The next process of its id, which waited, may be in since this very stimulus: that one has asked nothing.
            if state.nodes[name].connection == drain.connections[name]
            # Their launchers have asked, and hear it.
            if request not in drain.leaving.values()
        }
        assert waiting <= answered, "I26: who asked is not answered"
