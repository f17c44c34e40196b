"""One training process: the real machine in its connection's thread, and a main thread that trains, saves, loads and hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.effects import Exit, Persist, Report
from recovery.core.ids import RequestId, ResumeToken
from recovery.core.policy.retention import Kept, removable
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import Identity
from recovery.core.worker.effects import (
    BeginSteps,
    ConfirmRank,
    Connect,
    Disconnect,
    EndTraining,
    Fetch,
    FindCheckpoints,
    Interrupt,
    KeepDirectories,
    LeaveAsAsked,
    OpenGeneration,
    OpenRendezvous,
    ReplaceProcess,
    ResumeTraining,
    Retain,
    RetainCopies,
    Send,
    SetTimer,
    StopAt,
    Upload,
    WorkerEffect,
)
from recovery.core.worker.machine import WorkerMachine
from recovery.core.worker.stimuli import WorkerTimer
from recovery.training.disk_schedule import DiskSchedule
from tests.simulation import search
from tests.simulation.clock import OwnClock
from tests.simulation.files import Content, Saved, checkpoint, is_usable
from tests.simulation.live import LiveMemory
from tests.simulation.memory import AuthMethod, MemorySaves
from tests.simulation.network import UP, Wire
from tests.simulation.stops import Stop

if TYPE_CHECKING:
    from tests.simulation.slots import Slot
    from tests.simulation.world import World


class Process:
    """From its start to its end, or to the exec that replaces it."""

    def __init__(
        self,
        world: World,
        slot: Slot,
        identity: Identity,
        token: ResumeToken | None = None,
        hangs: s.Hangs | None = None,
    ) -> None:
        self.world, self.clock, self.slot, self.identity = world, world.clock, slot, identity
        self.name, self.role = str(identity.node_id), identity.role
        self.own = OwnClock(world.clock, world.shape.drift)
        self.alive, self.frozen_until, self.confirmed = True, 0, True
        self.wire: Wire | None = None
        self.plan: m.Rollback | None = None
        self.content: Content = ()
        self.step, self.phase, self.interrupted = 0, "", 0
        self._schedule = DiskSchedule(every_steps=world.shape.save_every, every_seconds=0)
        self.known = AuthMethod()
        self.memory = MemorySaves(self)
        self.live = LiveMemory(self)
        self.last_request: m.FromNode | None = None
        self._saving: tuple[m.Rollback, int] | None = None
        self._has_saved = False
        """The step that it has done, in this generation, or it began there."""
        self._addresses: dict[int, str] = {}
        """By generation: where its rank 0 listens."""
        self.meets_at = ""
        """The address of the world that it entered last."""
        self._due: dict[WorkerTimer, int] = {}
        self.offered: dict[int, set[str]] = {}
        """By rank that was offered: which directories were looked into."""
        self.stop_asked = Stop(self)
        self.machine = WorkerMachine(identity, world.rules)
        self.pinned: tuple[int, ...] = ()
        self._serves = world.exchange.serve(self)
        self.handle(s.Started(self.request(), token, hangs or s.Hangs()))

    def request(self) -> RequestId:
        return RequestId(f"{self.name}-{self.clock.draw('requests').getrandbits(64):x}")

    def _jitter(self) -> float:
        return self.clock.draw("jitter").random()

    # --- the connection's thread ---------------------------------------------------------------------------------------

    def handle(self, stimulus: s.WorkerStimulus) -> None:
        """Let the machine take a stimulus, or have it wait while the process is paused."""
        if not self.alive:
            return
        if self.clock.now < self.frozen_until:
            self.clock.later(self.frozen_until - self.clock.now, lambda: self.handle(stimulus))
            return
        if isinstance(stimulus, s.TimerFired):
            if self._due.get(stimulus.timer, self.own.read() + 1) > self.own.read():
                # A later one took its place.
                return
            del self._due[stimulus.timer]
            if stimulus.timer in (WorkerTimer.HEARTBEAT, WorkerTimer.ABORT) and self.plan is not None:
                self.handle(s.StepsDone(self.plan.generation, self.step, 1, self.step))
        effects = self.machine.handle(stimulus, self.own.read())
        self.machine.check()
        for effect in effects:
            if self.alive:
                self._do(effect)

    def hear(self, wire: Wire, message: m.FromScheduler) -> None:
        """A message has arrived."""
        if isinstance(message, m.Offer) and self.world.on_offer:
            self.world.on_offer.pop(0)(self)
        self._when_awake(lambda: self.handle(s.MessageReceived(message)) if self.wire is wire else None)

    def disconnected(self, wire: Wire, reason: str) -> None:
        """The end of a connection is known here."""
        self._when_awake(lambda: self._disconnected(wire, reason))

    def _when_awake(self, what: Callable[[], None]) -> None:
        if self.clock.now < self.frozen_until:
            self.clock.later(self.frozen_until - self.clock.now, lambda: self._when_awake(what))
        else:
            what()

    def _disconnected(self, wire: Wire, reason: str) -> None:
        if self.wire is wire and self.alive:
            self.wire = None
            self.handle(s.Disconnected(reason, self._jitter()))

    def _do(self, effect: WorkerEffect) -> None:
        if isinstance(effect, Send):
            self.tell(effect.message)
        elif isinstance(effect, Persist):
            self.world.notes[self.name].write(effect.records)
            if self.clock.draw("own store").random() < self.world.shape.stuck_rows:
                self.clock.seen["a worker's own store did not write"] += 1
            else:
                self.clock.soon("disk", 1, 10, lambda: self._release(effect))
        elif isinstance(effect, SetTimer):
            self._due[effect.timer] = effect.at_ms
            fired = s.TimerFired(effect.timer, self._jitter())
            self.clock.later(self.own.until(effect.at_ms), lambda: self.handle(fired))
        elif isinstance(effect, Connect):
            self.clock.soon("network", 1, 10, self._dial)
        elif isinstance(effect, Disconnect):
            wire, self.wire = self.wire, None
            if wire is not None:
                wire.send(UP, lambda: wire.cut("closed by the node"))
            self.clock.later(1, lambda: self.handle(s.Disconnected("closed by this side", self._jitter())))
        elif isinstance(effect, Interrupt):
            self._interrupt(effect.generation)
        elif isinstance(effect, OpenGeneration):
            self._open(effect.plan)
        elif isinstance(effect, BeginSteps):
            self.live.begin(effect.generation)
        elif isinstance(effect, OpenRendezvous):
            self._addresses[effect.generation] = effect.address
            self._join()
        elif isinstance(effect, ReplaceProcess):
            assert self.machine.admitted is not None, "only a member replaces itself"
            self.world.replaced(self, self.machine.admitted.token, effect.hangs)
        elif isinstance(effect, FindCheckpoints):
            self.world.look_takes(self.name, effect, lambda: search.found(self, effect))
        elif isinstance(effect, KeepDirectories):
            self.world.notes[self.name].places |= self.offered.pop(effect.rank, set())
        elif isinstance(effect, ConfirmRank):
            self.confirmed = True
        elif isinstance(effect, Retain):
            self.pinned = effect.pinned
            self.known.note(effect.step, effect.durable_step)
            self.known.pinned_in_memory = effect.pinned_in_memory
        elif isinstance(effect, Upload):
            self.world.storage.order(self, effect.checkpoint)
        elif isinstance(effect, (Fetch, RetainCopies)):
            self.world.exchange.do(self, effect)
        elif isinstance(effect, (StopAt, EndTraining, ResumeTraining, LeaveAsAsked)):
            self.stop_asked.do(effect)
        elif isinstance(effect, Exit):
            self.world.exited(self, effect)

    def tell(self, message: m.FromNode) -> None:
        """Say something to the scheduler, if there is a connection."""
        if getattr(message, "request_id", "") and not isinstance(message, m.Register):
            self.last_request = message
        if self.wire is not None:
            self.wire.up(message)

    def _release(self, persist: Persist) -> None:
        if self.alive:
            self.world.on_note(self, persist.records)
            for step in persist.then:
                assert isinstance(step, Report), step
                self.tell(step.message)
                self.handle(s.ReportStored(step.message.request_id))

    def _dial(self) -> None:
        if not self.alive or self.wire is not None:
            return
        wire = self.world.dialled(self)
        if wire is not None:
            self.wire = wire
            self.handle(s.Connected(self._serves))
        elif self.world.network.is_blocked(self.name):
            # Nobody refuses: the dial's own deadline ends it.
            self.clock.later(5_000, lambda: self.handle(s.ConnectFailed("no answer", self._jitter())))
        else:
            self.handle(s.ConnectFailed("refused", self._jitter()))

    # --- the main thread -----------------------------------------------------------------------------------------------

    def _open(self, plan: m.Rollback) -> None:
        assert self.plan is None, "the main thread is still in a generation"
        self.world.promises.plan_received(self, plan)
        self.plan, self.phase, self.step = plan, "loading", plan.step
        self._has_saved = plan.live_rank is None
        self.stop_asked.begin(plan)
        self._schedule.begin(durable_step=plan.step_on_disks, since_commit_ms=None)
        self.known = AuthMethod(self.known.pinned_in_memory)
        self.known.note(plan.committed_step, plan.durable_step)
        self.clock.soon("training", 5, 500, lambda: self._load(plan))

    def _load(self, plan: m.Rollback) -> None:
        if not self._is_in(plan):
            return
        self.content = ()
        if plan.live_rank is None:
            self.live.forget()
        if plan.path:
            file = self.world.disk.file_at(plan.path)
            is_gone = self.world.exchange.is_lost(self) or self.world.promises.is_fenced(self)
            assert file is not None or is_gone, f"I11: the target {plan.step} of {self.name} was deleted"
            if file is None or not is_usable(file, plan):
                self.clock.seen["a checkpoint was rejected when it was loaded"] += 1
                self.phase, self.live.has_taken = "rejected", False
                bad = s.CheckpointRejected(self.request(), plan.generation, plan.step, plan.path, "digest")
                self.handle(bad)
                return
            self.content = file.content
            if plan.live_rank is not None:
                self.live.loaded(plan, file.content)
        if plan.live_rank is None:
            self.world.promises.loaded(self, plan, self.content)
        self.memory.begin(plan)
        self.phase = "joining"
        if plan.rank == 0:
            self.clock.soon("training", 1, 20, lambda: self._listen(plan))
        self._join()

    def _listen(self, plan: m.Rollback) -> None:
        if self._is_in(plan):
            address = self.world.next_address()
            self.handle(s.RendezvousOpened(plan.generation, address))
            self._addresses[plan.generation] = address
            self._join()

    def _is_in(self, plan: m.Rollback) -> bool:
        return (
            self.alive and self.plan is plan and self.phase != "hung" and self.interrupted < plan.generation
        )

    def _join(self) -> None:
        if self.plan is not None and self.phase == "joining" and self.plan.generation in self._addresses:
            self.meets_at = self._addresses[self.plan.generation]
            if self.plan.live_rank is None:
                self.phase = "training"
                self.handle(s.StateRestored(self.plan.generation))
            else:
                self.phase = "taking"
            self.world.joined(self, self.plan)

    def trained(self, step: int) -> None:
        """One step is done."""
        plan = self.plan
        assert plan is not None, "only who has a plan trains"
        self.world.promises.stepped(self, plan, step)
        self.world.training_end.stepped(self, plan, step)
        self.world.on_step(self, plan, step)
        self.world.drains.stepped(plan, step)
        first, self.step = self.step == plan.step, step
        if first:
            self.handle(s.StepsDone(plan.generation, step, 1, step))
        if not self.stop_asked.ends_training(plan, step):
            self.end_step(plan, step)

    def end_step(self, plan: m.Rollback, step: int) -> None:
        """Save what is due, and go on, unless it is asked to wait or training ends here."""
        self._has_saved = self._schedule.takes_turn(step, now_ms=0, committed_ms=None)
        if self._has_saved:
            self._save(plan, step)
        else:
            self.memory.trained(plan, step)
        if not self.stop_asked.is_end(step) and not self.stop_asked.passes(step):
            if self.stop_asked.saves and not self._has_saved and not self.stop_asked.cannot_save():
                self._has_saved = True
                self._save(plan, step)
        elif self.is_over:
            self.finish(step)

    @property
    def is_over(self) -> bool:
        """Is the step that it has done the last?"""
        return self.step == self.world.shape.steps or self.stop_asked.is_end(self.step)

    def finish(self, step: int) -> None:
        """The training function returned."""
        assert self.plan is not None, "only who has a plan finishes"
        self.world.training_end.done(self.plan, step)
        if self.stop_asked.is_end(step) and not self._has_saved:
            self._save(self.plan, step)
        self._saved()
        self.memory.finish()
        self.phase = "done"
        self.handle(s.TrainingDone(self.request(), self.plan.generation, step))

    def trained_content(self, plan: m.Rollback) -> Content:
        """What it holds once it has trained in the world that it entered last."""
        return (*self.content, (plan.generation, plan.step, self.meets_at))

    def _save(self, plan: m.Rollback, step: int) -> None:
        # One save at a time.
        self._saved()
        if self.clock.draw("disk").random() < self.world.failing_saves:
            self.clock.seen["a save failed"] += 1
            return
        self._saving = (plan, step)
        self.clock.soon("disk", 1, 300, lambda: self._saved() if self._saving == (plan, step) else None)

    def _saved(self) -> None:
        """The save under way is durable. A process that is killed before leaves nothing; what lay there stays."""
        if self._saving is None or not self.alive:
            return
        (plan, step), self._saving = self._saving, None
        disk = self.world.disk[self.name]
        there = disk.get(step)
        if there is not None and there.held.run == plan.run and there.held.generation > plan.generation:
            self.clock.seen["a fenced incarnation's save was refused"] += 1
            return
        content = self.trained_content(plan)
        file = checkpoint(plan, step, self.name, content)
        disk[step] = Saved(held=file, content=content, rank=plan.rank, job=plan.job)
        self.handle(s.CheckpointPublished(self.request(), file))
        for old in removable(
            [Kept(number, 0.0) for number, other in disk.items() if other.held.run == plan.run],
            previous_durable_step=self.known.previous_durable_step,
            keep_checkpoint_max=self.world.shape.keep,
            keep_checkpoint_per_n_minutes=0,
            pinned=(*self.pinned, *self.world.storage.pinned(self)),
        ):
            self.world.promises.deleted(self, old)
            del disk[old]

    def _interrupt(self, generation: int) -> None:
        self.interrupted = max(self.interrupted, generation)
        if self.plan is not None and self.phase != "hung":
            if self.clock.draw("training").random() < self.world.hanging:
                self.phase = "hung"
                self.clock.seen["a main thread did not come back"] += 1
            else:
                plan = self.plan
                self.clock.soon("training", 1, 200, lambda: self.stop(plan, ""))

    def stop(self, plan: m.Rollback, collective_error: str) -> None:
        """The main thread leaves the generation."""
        if not self.alive or self.plan is not plan or self.phase == "hung":
            return
        self._saved()
        self.memory.finish()
        self.world.parted(self, plan)
        if self.world.shape.scripts:
            self._script_ended(plan, collective_error)
            return
        live, not_live = self.live.left(plan)
        self.plan, self.phase = None, ""
        self.handle(s.TrainingStopped(plan.generation, self.step, collective_error, live, not_live))

    def _script_ended(self, plan: m.Rollback, collective_error: str) -> None:
        """A script cannot be entered again: it replaces itself once its generation has ended for the scheduler too."""
        if collective_error and self.interrupted < plan.generation:
            self.phase = "waiting"
            self.handle(s.DataPlaneBroke(plan.generation, self.step, collective_error))
            return
        assert self.machine.admitted is not None, "it trained"
        self.world.replaced(self, self.machine.admitted.token, self.machine.hangs)
