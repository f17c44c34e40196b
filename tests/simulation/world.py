"""The world around the machines: who runs, who starts them again, what lies on the disks, and the data plane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from recovery.core import messages as m
from recovery.core.effects import Exit
from recovery.core.ids import ResumeToken
from recovery.core.records import Record, RunRecord
from recovery.core.worker import stimuli as s
from tests.simulation.clock import Clock
from tests.simulation.network import UP, Network, Wire
from tests.simulation.notes import Notes
from tests.simulation.process import Process, Saved
from tests.simulation.promises import Promises
from tests.simulation.proofs import Proofs
from tests.simulation.scheduler import SchedulerProcess
from tests.simulation.shape import Shape
from tests.simulation.store_model import StoreModel


class World:
    """Everybody and everything, from one seed."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.clock, self.shape, self.rules = Clock(seed), shape, shape.rules
        self.store, self.promises = StoreModel(), Promises(self)
        self.proofs = Proofs(self)
        self.network = Network(self.clock, delay_ms=shape.delay_ms, stall_share=shape.stall_share)
        self.slow_writes, self.failing_saves, self.hanging = (
            shape.slow_writes,
            shape.failing_saves,
            shape.hanging,
        )
        self.relaunch_ms, self.step_ms = shape.relaunch_ms, shape.step_ms
        self.disk_full_until, self.next_sync_fails = 0, False
        self.names = [f"w{index}" for index in range(self.rules.worker_count)]
        self.names += [f"ps{index}" for index in range(self.rules.server_count)]
        self.disk: dict[str, dict[int, Saved]] = {name: {} for name in self.names}
        self.processes: dict[str, Process | None] = dict.fromkeys(self.names)
        self.seconds: list[Process] = []
        """Further processes of an id whose first one runs, or is paused."""
        self.finished: set[str] = set()
        self.verdict, self.ended_ms = "", 0
        self.on_note: Callable[[Process, tuple[Record, ...]], None] = lambda process, records: None
        """Called with what a node has written into its own store."""
        self.on_step: Callable[[Process, m.Rollback, int], None] = lambda process, plan, step: None
        """Called with each step that a rank has applied."""
        self._planes: dict[tuple[int, int], list[Process]] = {}
        self._starts = self._stores = 1
        self.notes = {name: Notes() for name in self.names}
        """What lies in each node's own store."""
        self.scheduler: SchedulerProcess | None = SchedulerProcess(self, 1)
        for name in self.names:
            self.clock.soon("start", 0, 2_000, partial(self.launch, name))

    @property
    def living(self) -> list[Process]:
        """Every process that runs, in one order."""
        everybody = (*self.processes.values(), *self.seconds)
        return [process for process in everybody if process is not None and process.alive]

    # --- processes come and go -----------------------------------------------------------------------------------------

    def launch(self, name: str) -> None:
        """Start a process for the id, unless there is one."""
        if self.processes[name] is None and name not in self.finished and not self.verdict:
            role = m.Role.SERVER if name.startswith("ps") else m.Role.WORKER
            self.clock.say(f"{name} launched")
            self.processes[name] = Process(self, name, role)

    def second(self, process: Process) -> None:
        """One more process of the same id."""
        self.clock.say(f"{process.name} launched a second time")
        self.seconds.append(process)
        self.processes[process.name] = Process(self, process.name, process.role)

    def exited(self, process: Process, exit_: Exit) -> None:
        """A process ends by itself; with an error it is relaunched."""
        self.clock.say(f"{process.name} exits {exit_.code!r} {exit_.reason}")
        self.clock.seen[f"a process exited {exit_.code or 'well'}"] += 1
        if exit_.code == "":
            assert "finished" in self.outcomes, "nobody ends well before the job has"
            self.finished.add(process.name)
        self.kill(process)

    def kill(self, process: Process) -> None:
        """The process is gone, its socket closes; somebody relaunches it."""
        process.alive = False
        self._gone(process)
        self.proofs.ended(process)
        if self.processes[process.name] is process:
            self.processes[process.name] = None
            self.clock.soon("relaunch", *self.relaunch_ms, lambda: self.launch(process.name))

    def _gone(self, process: Process) -> None:
        if process.plan is not None:
            self.parted(process, process.plan)
        if process.wire is not None:
            wire = process.wire
            wire.send(UP, lambda: wire.cut("connection closed"))

    def replaced(self, process: Process, token: ResumeToken, hangs: s.Hangs) -> None:
        """exec in place."""
        self.clock.say(f"{process.name} replaces itself")
        process.alive = False
        self._gone(process)
        successor = Process(self, process.name, process.role, token, hangs, before=process)
        if self.processes[process.name] is process:
            self.processes[process.name] = successor
        else:
            self.seconds.append(successor)

    def dialled(self, process: Process) -> Wire | None:
        """A node dials."""
        if self.scheduler is None or self.network.is_blocked(process.name):
            return None
        wire = self.network.connect(process, self.scheduler)
        self.scheduler.wires[wire.number] = wire
        return wire

    def kill_scheduler(self) -> None:
        """SIGKILL to the scheduler; somebody relaunches it."""
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler = None
            self.clock.soon("relaunch", *self.relaunch_ms, self._relaunch_scheduler)

    def lose_store(self) -> None:
        """The scheduler's store is gone; its next process knows nothing and asks the workers."""
        self._stores += 1
        self.kill_scheduler()
        self.store = StoreModel(f"job-{self._stores}")
        self.promises.store_lost()

    def _relaunch_scheduler(self) -> None:
        self._starts += 1
        self.clock.say(f"scheduler process {self._starts}")
        self.scheduler = SchedulerProcess(self, self._starts)

    def scheduler_ended(self, exit_: Exit) -> None:
        """The job is over."""
        self.scheduler = None
        self.verdict, self.ended_ms = exit_.code or "FINISHED", self.clock.now

    @property
    def outcomes(self) -> list[str]:
        """How the runs ended, as a reader of the store sees it."""
        return [run.outcome for run in self.store.all(RunRecord)]

    # --- the data plane ------------------------------------------------------------------------------------------------

    def joined(self, process: Process, plan: m.Rollback) -> None:
        """A rank has entered the world of its generation."""
        plane = self._planes.setdefault((plan.run, plan.generation), [])
        plane.append(process)
        if len(plane) == plan.world_size:
            self._next(plan, plan.step + 1)

    def parted(self, process: Process, plan: m.Rollback) -> None:
        """A rank is gone from its world: some of the others notice, some wait for ever."""
        plane = self._planes.get((plan.run, plan.generation), [])
        if process not in plane:
            return
        plane.remove(process)
        for other in plane:
            if self.clock.draw("data plane").random() < 0.5:
                error = f"{process.name} closed the connection"
                self.clock.soon("data plane", 1, 30, partial(self._broke, other, plan, error))

    def _broke(self, process: Process, plan: m.Rollback, error: str) -> None:
        mine = process.plan
        if mine is not None and mine.generation == plan.generation and process.phase == "training":
            process.stop(mine, error if process.interrupted < plan.generation else "")

    def _next(self, plan: m.Rollback, step: int) -> None:
        self.clock.soon("data plane", *self.step_ms, lambda: self._tick(plan, step))

    def _tick(self, plan: m.Rollback, step: int) -> None:
        plane = self._planes[plan.run, plan.generation]
        if len(plane) < plan.world_size or any(rank.phase != "training" for rank in plane):
            return
        if any(self.clock.now < rank.frozen_until or not rank.confirmed for rank in plane):
            # A collective waits for who is paused.
            self._next(plan, step)
        elif plan.step == self.shape.steps:
            for rank in list(plane):
                rank.finish(step - 1)
        else:
            for rank in list(plane):
                rank.trained(step)
            if step < self.shape.steps:
                self._next(plan, step + 1)
