"""The scheduler's and the workers' machines together, over a wire that breaks, a disk that lags, and processes that die.

Seeded: a failure names its seed; `WORLD_SEED=<n> pytest tests/core/test_world.py` replays just that one.
"""

from __future__ import annotations

import heapq
import os
import random
from collections.abc import Callable
from functools import partial

import pytest

from recovery.core import messages as m
from recovery.core import records as r
from recovery.core.effects import Answer, Exit, Persist, Report
from recovery.core.ids import ConnectionId, NodeId, RequestId, ResumeToken
from recovery.core.rules import Rules
from recovery.core.scheduler import effects as se
from recovery.core.scheduler import stimuli as ss
from recovery.core.scheduler.effects import SchedulerTimer
from recovery.core.scheduler.job_states import new_job, next_incarnation
from recovery.core.scheduler.machine import SchedulerMachine
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import Identity
from recovery.core.worker.machine import WorkerMachine
from recovery.core.worker.stimuli import WorkerTimer
from recovery.core.worker.transitions import WorkerState
from tests.core.desk import _key, checkpoint

STEPS, SAVE_EVERY, STEP_MS = 200, 20, 50
SEEDS = [int(os.environ["WORLD_SEED"])] if "WORLD_SEED" in os.environ else list(range(300))


class Process:
    """A worker: its machine, and a main thread that steps when the machine lets it."""

    def __init__(self, world: World, name: str, token: ResumeToken | None = None) -> None:
        self.world, self.name, self.alive = world, name, True
        identity = Identity(node_id=NodeId(name), role=m.Role.WORKER, host="h", pid=1)
        self.machine = WorkerMachine(identity, world.rules)
        self.connection: ConnectionId | None = None
        self.timers: dict[WorkerTimer, int] = {}
        self.plan: m.Rollback | None = None
        self.step = 0
        self.stopping = False
        self.exit: Exit | None = None
        world.later(0, lambda: self.feel(s.Started(world.request(), token)))

    def feel(self, stimulus: s.WorkerStimulus) -> None:
        if not self.alive:
            return
        effects = self.machine.handle(stimulus, self.world.now)
        self.machine.check()
        for effect in effects:
            self.do(effect)

    def do(self, effect: object) -> None:
        world = self.world
        if isinstance(effect, we.Send):
            self.send(effect.message)
        elif isinstance(effect, Persist):
            for step in effect.then:
                assert isinstance(step, Report)
                self.send(step.message)
                world.later(1, partial(self.feel, s.ReportStored(step.message.request_id)))
        elif isinstance(effect, we.SetTimer):
            self.timers[effect.timer] = effect.at_ms
            world.later(effect.at_ms - world.now, lambda: self.due(effect.timer, effect.at_ms))
        elif isinstance(effect, we.Connect):
            world.later(world.random.randint(0, 5), self.dial)
        elif isinstance(effect, we.Disconnect):
            world.cut(self)
        elif isinstance(effect, we.OpenGeneration):
            assert self.plan is None, "the main thread is in one generation at a time"
            self.plan, self.step, self.stopping = effect.plan, effect.plan.step, False
            world.opened(self, effect.plan)
            world.later(STEP_MS, partial(self.train, effect.plan))
        elif isinstance(effect, we.Interrupt):
            self.stopping = True
            world.later(world.random.randint(0, 30), partial(self.stop, self.plan))
        elif isinstance(effect, we.FindCheckpoints):
            mine = (one for one in world.disk[self.name].values() if one.run == effect.run)
            held = tuple(sorted(mine, key=lambda one: -one.step))
            world.later(2, lambda: self.feel(s.CheckpointsFound(world.request(), effect.search_id, held)))
        elif isinstance(effect, we.ReplaceProcess):
            world.replace(self)
        elif isinstance(effect, Exit):
            self.exit = self.exit or effect
            world.later(1, lambda: world.end(self))
        assert not isinstance(effect, we.ConfirmRank), "nobody was paused"

    def due(self, key: WorkerTimer, at_ms: int) -> None:
        if self.timers.get(key) == at_ms:
            del self.timers[key]
            if key is WorkerTimer.HEARTBEAT and self.plan is not None:
                self.feel(s.StepsDone(self.plan.generation, self.step, 1, self.step))
            self.feel(s.TimerFired(key, self.world.random.random()))

    def dial(self) -> None:
        if not self.alive or self.connection is not None:
            return
        if self.world.scheduler is None:
            self.feel(s.ConnectFailed("refused", self.world.random.random()))
            return
        self.connection = self.world.accept(self)
        self.feel(s.Connected())

    def send(self, message: m.FromNode) -> None:
        if self.connection is not None:
            self.world.to_scheduler(self.connection, message)

    # --- the main thread -------------------------------------------------------------------------------------------------

    def train(self, plan: m.Rollback | None) -> None:
        if not self.alive or self.plan is not plan or plan is None or self.stopping:
            return
        if not self.world.everybody_is_in(plan.generation):  # a collective waits for its peers
            self.world.later(STEP_MS, lambda: self.train(plan))
            return
        # It went back to a checkpoint of the last step.
        if self.step == STEPS:
            self.feel(s.TrainingDone(self.world.request(), plan.generation, self.step))
            return
        self.step += 1
        self.world.stepped(self, plan)
        if self.step == plan.step + 1:
            self.feel(s.StateRestored(plan.generation))
            self.feel(s.StepsDone(plan.generation, self.step, 1, self.step))
        if self.step % SAVE_EVERY == 0:
            held = checkpoint(
                self.step, generation=plan.generation, path=f"{self.name}/{self.step}", run=plan.run
            )
            self.world.disk[self.name][self.step] = held
            self.feel(s.CheckpointPublished(self.world.request(), held))
        self.world.later(STEP_MS, lambda: self.train(plan))

    def stop(self, plan: m.Rollback | None) -> None:
        if (
            not self.alive
            or plan is None
            or self.plan is not plan
            or self.machine.state is WorkerState.LEAVING
        ):
            return
        self.plan = None
        self.feel(s.TrainingStopped(plan.generation, self.step))


class World:
    """Virtual time, a wire, a disk, a scheduler and its workers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rules = Rules(
            worker_count=self.random.randint(2, 4),
            lease_ms=3_000,
            rejoin_window_ms=self.random.choice([0, 1_000, 3_000]),
            heartbeat_ms_min=300,
            heartbeat_ms_max=600,
            receive_timeout_ms=2_000,
            abort_timeout_ms=1_000,
            topology_timeout_ms=600_000,
        )
        self.now = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.scheduler: SchedulerMachine | None = None
        self.rows: dict[tuple[object, ...], r.Record] = {}
        self.incarnations = 0
        self.timers: dict[SchedulerTimer, int] = {}
        self.wires: dict[ConnectionId, Process] = {}
        self.disk: dict[str, dict[int, m.HeldCheckpoint]] = {}
        self.processes: dict[str, Process] = {}
        self.plans: dict[tuple[int, int], set[int]] = {}
        self.highest: dict[str, tuple[int, int]] = {}
        self.finished: set[str] = set()
        for number in range(self.rules.worker_count):
            self.disk[f"worker_{number}"] = {}
            self.processes[f"worker_{number}"] = Process(self, f"worker_{number}")
        self.start_scheduler()

    def request(self) -> RequestId:
        return RequestId(f"{self.random.getrandbits(64):x}")

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + max(0, delay_ms), self._count, call))

    def run(self, until_ms: int, stop: Callable[[], bool] = lambda: False) -> None:
        while self._queue and self._queue[0][0] <= until_ms and not stop():
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = max(self.now, until_ms) if not stop() else self.now

    # --- the scheduler ---------------------------------------------------------------------------------------------------

    def start_scheduler(self) -> None:
        self.incarnations += 1
        job = next((row for row in self.rows.values() if isinstance(row, r.JobRecord)), None)
        if job is None:
            self.scheduler = SchedulerMachine(new_job("job", self.rules), self.rules)
        else:
            self.scheduler = SchedulerMachine(next_incarnation(job), self.rules)
            self.scheduler.restore(
                self._of(r.NodeRecord),
                self._of(r.GenerationRecord),
                self._of(r.CheckpointRecord),
                self._of(r.SlotRecord),
            )
        self._carry_out(self.scheduler.start(self.now))

    def _of(self, kind: type) -> tuple:  # type: ignore[type-arg]  # of any kind
        return tuple(
            row
            for _, row in sorted(self.rows.items(), key=lambda item: repr(item[0]))
            if isinstance(row, kind)
        )

    def kill_scheduler(self) -> None:
        self.scheduler, self.timers = None, {}
        for process in list(self.wires.values()):
            self.cut(process)

    def handle(self, stimulus: ss.SchedulerStimulus) -> None:
        if self.scheduler is not None:
            effects = self.scheduler.handle(stimulus, self.now)
            self.scheduler.check()
            self._carry_out(effects)

    def _carry_out(self, effects: list) -> None:  # type: ignore[type-arg]  # of any kind
        incarnation = self.incarnations
        for effect in effects:
            if isinstance(effect, Persist):
                self.later(self.random.randint(1, 8), partial(self._durable, effect, incarnation))
            elif isinstance(effect, se.Send):
                self.to_worker(effect.connection, effect.message)
            elif isinstance(effect, se.CloseConnection):
                self.later(8, partial(self.disconnect, effect.connection))
            elif isinstance(effect, se.SetTimer):
                self.timers[effect.timer] = effect.at_ms
                self.later(
                    effect.at_ms - self.now, partial(self._due, effect.timer, effect.at_ms, incarnation)
                )
            elif isinstance(effect, Exit):
                self.kill_scheduler()

    _written: tuple[int, int] = (0, 0)

    def _durable(self, persist: Persist, incarnation: int) -> None:
        """Writes of a killed scheduler that had not reached the disk are lost, and so are their answers."""
        if incarnation != self.incarnations or self.scheduler is None:
            return
        for record in persist.records:
            if not isinstance(record, r.EventRecord):
                self.rows[_key(record)] = record
        for step in persist.then:
            if isinstance(step, Answer):
                self.to_worker(step.connection, step.message)
            elif isinstance(step, Exit):
                self.kill_scheduler()

    def _due(self, timer: SchedulerTimer, at: int, incarnation: int) -> None:
        if incarnation == self.incarnations and self.timers.get(timer) == at:
            del self.timers[timer]
            self.handle(ss.TimerFired(timer))

    # --- the wire --------------------------------------------------------------------------------------------------------

    def accept(self, process: Process) -> ConnectionId:
        self._count += 1
        connection = ConnectionId(self._count)
        self.wires[connection] = process
        return connection

    def to_scheduler(self, connection: ConnectionId, message: m.FromNode) -> None:
        def arrive() -> None:
            if connection in self.wires:
                token = ResumeToken(f"{self.random.getrandbits(64):x}")
                self.handle(ss.MessageReceived(connection, message, "h", token))

        self.later(3, arrive)

    def to_worker(self, connection: ConnectionId, message: m.FromScheduler) -> None:
        process = self.wires.get(connection)

        def arrive() -> None:
            if process is not None and self.wires.get(connection) is process:
                process.feel(s.MessageReceived(message))

        self.later(3, arrive)

    def disconnect(self, connection: ConnectionId) -> None:
        process = self.wires.get(connection)
        if process is not None:
            self.cut(process)

    def cut(self, process: Process) -> None:
        """The connection ends on both sides."""
        connection, process.connection = process.connection, None
        if connection is None:
            return
        self.wires.pop(connection, None)
        self.handle(ss.ConnectionLost(connection, "connection closed"))
        self.later(1, lambda: process.feel(s.Disconnected("closed", self.random.random())))

    # --- the workers -----------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.alive = False
        self.cut(process)

    def launch(self, name: str) -> None:
        self.processes[name] = Process(self, name)

    def replace(self, process: Process) -> None:
        admitted = process.machine.admitted
        assert admitted is not None
        self.kill(process.name)
        self.processes[process.name] = Process(self, process.name, admitted.token)

    def end(self, process: Process) -> None:
        process.alive = False
        self.cut(process)
        if process.exit is not None and process.exit.code == "":
            self.finished.add(process.name)

    # --- invariants ------------------------------------------------------------------------------------------------------

    def opened(self, process: Process, plan: m.Rollback) -> None:
        """Every rank of a generation goes to the same step, which it holds; generations only rise."""
        steps = self.plans.setdefault((plan.run, plan.generation), set())
        steps.add(plan.step)
        assert len(steps) == 1, f"generation {plan.generation} has plans for steps {steps}"
        assert (plan.run, plan.generation) > self.highest.get(process.name, (0, 0)), "a generation came back"
        self.highest[process.name] = (plan.run, plan.generation)
        if plan.step:
            held = self.disk[process.name].get(plan.step)
            assert held is not None, "the plan's file is not this rank's"
            assert held.digest == plan.digest, "the plan's file is of another history"

    def everybody_is_in(self, generation: int) -> bool:
        return all(
            process.alive and process.plan is not None and process.plan.generation == generation
            for process in self.processes.values()
        )

    def stepped(self, process: Process, plan: m.Rollback) -> None:
        """A fenced process never steps: its row says another incarnation, and so its generation can not be full."""
        row = self.rows[("NodeRecord", process.name)]
        assert isinstance(row, r.NodeRecord)
        assert process.machine.admitted is not None
        assert row.incarnation == process.machine.admitted.incarnation, "a fenced process stepped"


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails_everybody_finishes_when_the_faults_stop(seed: int) -> None:
    world = World(seed)
    dice = random.Random(f"{seed}/faults")
    for _ in range(dice.randint(2, 14)):
        world.run(world.now + dice.randint(20, 4_000))
        if world.finished:
            break
        fault = dice.choice(["worker", "worker", "scheduler", "both", "wire", "wire", "all"])
        names = sorted(world.processes)
        victims = names if fault == "all" else [dice.choice(names)] if fault in ("worker", "both") else []
        if fault == "wire":
            world.cut(world.processes[dice.choice(names)])
        for name in victims:
            world.kill(name)
        if fault in ("scheduler", "both", "all") and world.scheduler is not None:
            world.kill_scheduler()
        world.run(world.now + dice.randint(0, 1_500))
        for name in names:
            if not world.processes[name].alive and not world.finished:
                world.launch(name)
        if world.scheduler is None and not world.finished:
            world.start_scheduler()
    # Whoever is started after the end begins the path's next run.
    if not world.finished:
        for name in sorted(world.processes):
            if not world.processes[name].alive:
                world.launch(name)
    if world.scheduler is None:
        world.start_scheduler()
    expected = {name for name, process in world.processes.items() if process.alive} | world.finished

    world.run(world.now + 300_000, stop=lambda: world.finished >= expected)

    assert world.finished >= expected, (
        f"WORLD_SEED={seed}: at {world.now} ms finished {sorted(world.finished)}; "
        f"job {[row for row in world.rows.values() if isinstance(row, r.JobRecord)]}; "
        f"{[(name, process.alive, process.machine.state, process.step, process.exit) for name, process in world.processes.items()]}"
    )
    [job] = [row for row in world.rows.values() if isinstance(row, r.JobRecord)]
    assert job.state in (r.JobState.FINISHED, r.JobState.RUNNING, r.JobState.FORMING)
