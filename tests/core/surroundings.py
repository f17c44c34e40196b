"""The world around the machines: who runs, what lies on the disks, the data plane, and the promises that hold among all."""

from __future__ import annotations

from functools import partial
from typing import Any

from recovery.core import messages as m
from recovery.core.effects import Exit
from recovery.core.ids import ResumeToken
from recovery.core.records import RunRecord
from recovery.core.rules import Rules
from tests.core.simulation import Clock, SchedulerLife, Store, Wire
from tests.core.trainers import Content, Process


class World:
    """Everybody, the disks, and the promises that hold among them."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.clock, self.rules, self.store = Clock(seed), rules, Store()
        self.steps, self.save_every = 40, 5
        self.slow_writes, self.failing_saves, self.hanging = 0.05, 0.05, 0.03
        self.faults = True
        self.relaunch_ms = (200, 4_000)
        self.names = [f"w{index}" for index in range(rules.worker_count)]
        self.names += [f"ps{index}" for index in range(rules.server_count)]
        self.disk: dict[str, dict[int, tuple[m.HeldCheckpoint, Content | None]]] = {
            name: {} for name in self.names
        }
        self.processes: dict[str, Process | None] = dict.fromkeys(self.names)
        self.finished: set[str] = set()
        self.verdict, self.ended_ms = "", 0
        self.scripts = False
        self.seconds: list[Process] = []
        self._wires = 0
        self._plans: dict[tuple[int, int], dict[int, tuple[Process, int]]] = {}
        self._contents: dict[tuple[int, int], Content] = {}
        self._planes: dict[tuple[int, int], list[Process]] = {}
        self.scheduler: SchedulerLife | None = SchedulerLife(self, 1)
        self._lives = 1
        for name in self.names:
            self.clock.soon(0, 2_000, partial(self.launch, name))

    # --- processes come and go -----------------------------------------------------------------------------------------

    def launch(self, name: str) -> None:
        """Start a process for the id, unless there is one."""
        if self.processes[name] is None and name not in self.finished and not self.verdict:
            role = m.Role.SERVER if name.startswith("ps") else m.Role.WORKER
            self.clock.say(f"{name} launched")
            self.processes[name] = Process(self, name, role)

    def second(self, process: Process) -> None:
        """One more process of the same id."""
        self.seconds.append(process)
        self.processes[process.name] = Process(self, process.name, process.role)

    def wipe(self) -> None:
        """The scheduler's file is gone; another job begins, which does not know the old one's checkpoints."""
        self.store = Store()
        self._plans.clear()
        self._contents.clear()
        for files in self.disk.values():
            files.clear()

    def exited(self, process: Process, exit_: Exit) -> None:
        """A process ends by itself; with an error it is relaunched."""
        self.clock.say(f"{process.name} exits {exit_.code!r} {exit_.reason}")
        if exit_.code == "":
            outcomes = [run.outcome for run in self.store.all(RunRecord)]
            assert "finished" in outcomes, "nobody ends well before the job has"
            self.finished.add(process.name)
        self.kill(process)

    def kill(self, process: Process) -> None:
        """The process is gone, its socket closes; somebody relaunches it."""
        process.alive = False
        self._gone(process)
        if self.processes[process.name] is process:
            self.processes[process.name] = None
            self.clock.soon(*self.relaunch_ms, lambda: self.launch(process.name))

    def _gone(self, process: Process) -> None:
        if process.plan is not None:
            self.parted(process, process.plan)
        if process.wire is not None:
            wire = process.wire
            wire.send("up", lambda: wire.cut("connection closed"))

    def replaced(self, process: Process, token: ResumeToken) -> None:
        """exec in place."""
        self.clock.say(f"{process.name} replaces itself")
        process.alive = False
        self._gone(process)
        successor = Process(self, process.name, process.role, token)
        if self.processes[process.name] is process:
            self.processes[process.name] = successor
        else:
            self.seconds.append(successor)

    def dialled(self, process: Process) -> Wire | None:
        """A node dials."""
        if self.scheduler is None:
            return None
        self._wires += 1
        wire = Wire(self.clock, self._wires, process, self.scheduler)
        self.scheduler.wires[wire.number] = wire
        return wire

    def kill_scheduler(self) -> None:
        """SIGKILL to the scheduler; somebody relaunches it."""
        if self.scheduler is not None:
            self.scheduler.kill()
            self.scheduler = None
            self.clock.soon(*self.relaunch_ms, self._relaunch_scheduler)

    def _relaunch_scheduler(self) -> None:
        self._lives += 1
        self.clock.say(f"scheduler life {self._lives}")
        self.scheduler = SchedulerLife(self, self._lives)

    def scheduler_ended(self, exit_: Exit) -> None:
        """The job is over."""
        self.scheduler = None
        self.verdict, self.ended_ms = exit_.code or "FINISHED", self.clock.now

    # --- the data plane ------------------------------------------------------------------------------------------------

    def joined(self, process: Process, plan: m.Rollback) -> None:
        """A rank has entered the world of its generation."""
        plane = self._planes.setdefault((plan.run, plan.generation), [])
        plane.append(process)
        if len(plane) == plan.world_size:
            self.clock.soon(10, 100, lambda: self._tick(plan, plan.step + 1))

    def parted(self, process: Process, plan: m.Rollback) -> None:
        """A rank is gone from its world: some of the others notice, some wait for ever."""
        plane = self._planes.get((plan.run, plan.generation), [])
        if process not in plane:
            return
        plane.remove(process)
        for other in plane:
            if self.clock.random.random() < 0.5:
                error = f"{process.name} closed the connection"
                self.clock.soon(1, 30, partial(self._broke, other, plan, error))

    def _broke(self, process: Process, plan: m.Rollback, error: str) -> None:
        if (
            process.plan is not None
            and process.plan.generation == plan.generation
            and process.phase == "training"
        ):
            process.stop(process.plan, error if process.interrupted < plan.generation else "")

    def _tick(self, plan: m.Rollback, step: int) -> None:
        plane = self._planes[plan.run, plan.generation]
        if len(plane) < plan.world_size or any(rank.phase != "training" for rank in plane):
            return
        waits = any(self.clock.now < rank.frozen_until or not rank.confirmed for rank in plane)
        if not waits and plan.step == self.steps:
            for rank in list(plane):
                rank.finish(step - 1)
        elif not waits:
            for rank in list(plane):
                rank.trained(step)
        if step < self.steps or waits:
            self.clock.soon(20, 60, lambda: self._tick(plan, step if waits else step + 1))

    # --- promises ------------------------------------------------------------------------------------------------------

    def check_promise(self, message: Any) -> None:
        """What leaves now must be durable by now."""
        job = self.store.job
        assert job is not None
        if isinstance(message, m.JobEnded):
            outcomes = [run.outcome for run in self.store.all(RunRecord)]
            assert message.outcome.value in outcomes, f"{message} before it is written"
        if isinstance(message, m.Rollback):
            assert (job.run, job.generation) >= (message.run, message.generation), (
                "a plan before it is written"
            )
        if isinstance(message, m.Admitted):
            incarnations = [
                row.incarnation for key, row in self.store.rows.items() if hasattr(row, "token_digest")
            ]
            assert message.incarnation in incarnations

    def check_plan(self, process: Process, plan: m.Rollback) -> None:
        """The same step for every rank, one process per rank, and everybody has the file."""
        told = self._plans.setdefault((plan.run, plan.generation), {})
        assert all(step == plan.step for _, step in told.values()), "two ranks were told different steps"
        assert plan.rank not in told or told[plan.rank][0] is process, (
            "two processes of one rank in one generation"
        )
        assert plan.rank not in told, "one process entered a generation twice"
        told[plan.rank] = (process, plan.step)
        assert self.store.all(type(self.store.job)), "a plan without a job"
        if plan.step:
            assert plan.step in self.disk[process.name], "nobody may be sent to a file that it does not hold"

    def check_content(self, plan: m.Rollback, content: Content) -> None:
        """All ranks load the same history, and it leads to the plan's step without a gap."""
        known = self._contents.setdefault((plan.run, plan.generation), content)
        assert known == content, f"ranks with different histories train together: {known} {content}"
