"""A made-up training process around the member machine. The world that it lives in is surroundings.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core import stimuli as s
from recovery.core.effects import (
    Confirmed,
    Connect,
    Disconnect,
    Exit,
    FindCheckpoints,
    Interrupt,
    OpenGeneration,
    OpenRendezvous,
    Persist,
    ReplaceProcess,
    Report,
    SetTimer,
    Tell,
    WorkerEffect,
)
from recovery.core.ids import NodeId, RequestId, ResumeToken
from recovery.core.link import Identity
from recovery.core.member import Member
from tests.core.simulation import Wire, held

if TYPE_CHECKING:
    from tests.core.surroundings import World

Content = tuple[tuple[int, int], ...]
"""How weights came to be: (generation, from step) of each stretch. Two ranks with different histories have different bits."""


class Process:
    """One training process: the machine in its connection's thread, and a main thread that trains when it may."""

    def __init__(self, world: World, name: str, role: m.Role, token: ResumeToken | None = None) -> None:
        self.world, self.clock, self.name, self.role = world, world.clock, name, role
        self.alive, self.wire, self.frozen_until, self.confirmed = True, None, 0, True
        self.plan: m.Rollback | None = None
        self.content: Content = ()
        self.step, self.phase, self.interrupted = 0, "", 0
        self._addresses: set[int] = set()
        self._due: dict[str, int] = {}
        self._after_exec = token
        self.member = Member(Identity(node_id=NodeId(name), role=role, host="h", pid=1), world.rules)
        self.handle(s.Started(self._request(), token))

    wire: Wire | None

    def _request(self) -> RequestId:
        return RequestId(f"{self.name}-{self.clock.random.getrandbits(64):x}")

    # --- the connection's thread ---------------------------------------------------------------------------------------

    def handle(self, stimulus: s.WorkerStimulus) -> None:
        """Let the machine take a stimulus, or have it wait while the process stands still."""
        if not self.alive:
            return
        if self.clock.now < self.frozen_until:
            self.clock.later(self.frozen_until - self.clock.now, lambda: self.handle(stimulus))
            return
        if isinstance(stimulus, s.WorkerTimerFired):
            if self._due.get(stimulus.key, self.clock.now + 1) > self.clock.now:
                return
            del self._due[stimulus.key]
            if stimulus.key == "heartbeat" and self.plan is not None:
                self.handle(s.StepsDone(self.plan.generation, self.step, 1, self.step))
        for effect in self.member.handle(stimulus, self.clock.now):
            if self.alive:
                self._do(effect)

    def hear(self, wire: Wire, message: m.FromScheduler) -> None:
        self._when_awake(lambda: self.handle(s.SchedulerSpoke(message)) if self.wire is wire else None)

    def hung_up(self, wire: Wire, reason: str) -> None:
        self._when_awake(lambda: self._disconnected(wire, reason))

    def _when_awake(self, what: Callable[[], None]) -> None:
        if self.clock.now < self.frozen_until:
            self.clock.later(self.frozen_until - self.clock.now, lambda: self._when_awake(what))
        else:
            what()

    def _disconnected(self, wire: Wire, reason: str) -> None:
        if self.wire is wire and self.alive:
            self.wire = None
            self.handle(s.Disconnected(reason, self.clock.random.random()))

    def _do(self, effect: WorkerEffect) -> None:
        if isinstance(effect, Tell):
            self._tell(effect.message)
        elif isinstance(effect, Persist):
            self.clock.soon(1, 10, lambda: self._release(effect))
        elif isinstance(effect, SetTimer):
            self._due[effect.key] = effect.at_ms
            fired = s.WorkerTimerFired(effect.key, self.clock.random.random())
            self.clock.later(max(0, effect.at_ms - self.clock.now), lambda: self.handle(fired))
        elif isinstance(effect, Connect):
            self.clock.soon(1, 10, self._dial)
        elif isinstance(effect, Disconnect):
            wire, self.wire = self.wire, None
            if wire is not None:
                wire.send("up", lambda: wire.cut("closed by the node"))
            self.clock.soon(1, 5, lambda: self.handle(s.Disconnected("closed by this side", 0.5)))
        elif isinstance(effect, Interrupt):
            self._interrupt(effect.generation)
        elif isinstance(effect, OpenGeneration):
            self._open(effect.plan)
        elif isinstance(effect, OpenRendezvous):
            self._addresses.add(effect.generation)
            self._join()
        elif isinstance(effect, ReplaceProcess):
            assert self.member.admitted is not None
            self.world.replaced(self, self.member.admitted.token)
        elif isinstance(effect, FindCheckpoints):
            self.clock.soon(1, 50, lambda: self._found(effect.run))
        elif isinstance(effect, Confirmed):
            self.confirmed = True
        elif isinstance(effect, Exit):
            self.world.exited(self, effect)

    def _tell(self, message: m.FromNode) -> None:
        if self.wire is not None:
            self.wire.up(message)

    def _release(self, persist: Persist) -> None:
        if self.alive:
            for step in persist.then:
                assert isinstance(step, Report)
                self._tell(step.message)

    def _dial(self) -> None:
        if not self.alive:
            return
        if self.wire is not None:
            return
        wire = self.world.dialled(self)
        if wire is None:
            self.handle(s.ConnectFailed("refused", self.clock.random.random()))
        else:
            self.wire = wire
            self.handle(s.Connected())

    def _found(self, run: int) -> None:
        files = tuple(file for file, _ in self.world.disk[self.name].values() if file.run == run)
        self.handle(s.CheckpointsFound(self._request(), files))

    # --- the main thread -----------------------------------------------------------------------------------------------

    def _open(self, plan: m.Rollback) -> None:
        assert self.plan is None, "the main thread is still in a generation"
        self.world.check_plan(self, plan)
        self.plan, self.phase, self.step = plan, "loading", plan.step
        self.clock.soon(5, 100, lambda: self._load(plan))

    def _load(self, plan: m.Rollback) -> None:
        if not self._is_in(plan):
            return
        self.content = ()
        if plan.step:
            file, content = self.world.disk[self.name][plan.step]
            assert file.path == plan.path
            if content is None:
                self.phase = "rejected"
                reason = "digest"
                self.handle(
                    s.CheckpointRejected(self._request(), plan.generation, plan.step, plan.path, reason)
                )
                return
            assert file.digest == plan.digest, "the file was overwritten under the plan"
            self.content = content
        self.world.check_content(plan, self.content)
        self.phase = "joining"
        if plan.rank == 0:
            self.clock.soon(1, 20, lambda: self._listen(plan))
        self._join()

    def _listen(self, plan: m.Rollback) -> None:
        if self._is_in(plan):
            self.handle(s.RendezvousOpened(plan.generation, "h:1"))
            self._addresses.add(plan.generation)
            self._join()

    def _is_in(self, plan: m.Rollback) -> bool:
        return (
            self.alive and self.plan is plan and self.phase != "hung" and self.interrupted < plan.generation
        )

    def _join(self) -> None:
        if self.plan is not None and self.phase == "joining" and self.plan.generation in self._addresses:
            self.phase = "training"
            self.world.joined(self, self.plan)

    def trained(self, step: int) -> None:
        """One step is done."""
        assert self.plan is not None
        first, self.step = self.step == self.plan.step, step
        if first:
            self.handle(s.StepsDone(self.plan.generation, step, 1, step))
        if step % self.world.save_every == 0:
            self._save(self.plan, step)
        if step == self.world.steps:
            self.finish(step)

    def finish(self, step: int) -> None:
        """The training function returned."""
        assert self.plan is not None
        self.phase = "done"
        self.handle(s.TrainingDone(self._request(), self.plan.generation, step))

    def _save(self, plan: m.Rollback, step: int) -> None:
        if self.clock.random.random() < self.world.failing_saves:
            return
        file = held(plan.run, plan.generation, step, self.name)
        self.world.disk[self.name][step] = (file, (*self.content, (plan.generation, plan.step)))
        self.clock.soon(1, 300, lambda: self.handle(s.CheckpointPublished(self._request(), file)))

    def _interrupt(self, generation: int) -> None:
        self.interrupted = max(self.interrupted, generation)
        if self.plan is not None and self.phase != "hung":
            if self.clock.random.random() < self.world.hanging:
                self.phase = "hung"
            else:
                plan = self.plan
                self.clock.soon(1, 200, lambda: self.stop(plan, ""))

    def stop(self, plan: m.Rollback, collective_error: str) -> None:
        """The main thread leaves the generation."""
        if self.alive and self.plan is plan and self.phase != "hung":
            self.world.parted(self, plan)
            if self.world.scripts:
                self._script_ended(plan, collective_error)
                return
            self.plan, self.phase = None, ""
            self.handle(s.TrainingStopped(plan.generation, self.step, collective_error))

    def _script_ended(self, plan: m.Rollback, collective_error: str) -> None:
        """A script cannot be entered again: it replaces itself once its generation has ended for the scheduler too."""
        if collective_error and self.interrupted < plan.generation:
            self.phase = "waiting"
            self.handle(s.DataPlaneBroke(plan.generation, self.step, collective_error))
            return
        assert self.member.admitted is not None
        self.world.replaced(self, self.member.admitted.token)
