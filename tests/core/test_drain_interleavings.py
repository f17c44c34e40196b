"""A departure among real machines whose messages, steps and deaths come in any order: nobody waits for ever, and no step is lost."""

from __future__ import annotations

import random
from collections import deque

import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import HandedOver
from recovery.core.effects import Exit, Persist, Report
from recovery.core.ids import Generation, NodeId, RequestId, ResumeToken
from recovery.core.records import EventKind, JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.barrier import BarrierState
from recovery.core.scheduler.stimuli import MessageReceived
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import Identity
from recovery.core.worker.machine import WorkerMachine
from recovery.core.worker.stimuli import WorkerTimer
from recovery.worker.stop_step import StopPoint
from tests.core.desk import Desk, checkpoint

RULES = Rules(worker_count=3, standby_count=1, rejoin_window_ms=0, heartbeat_enabled=False)
LAST_STEP = 60


class Process:
    """A worker's machine, the place where its main thread stops, and a main thread that steps together with the others."""

    def __init__(self, world: World, name: str, *, standby: bool = False) -> None:
        self.world, self.name = world, name
        self.alive, self.waits, self.trains, self.is_held_back = True, False, False, False
        self.interrupted = self.generation = self.rank = 0
        self.applied = self.requests = self.read = 0
        self.up: deque[m.FromNode] = deque()
        self.point = StopPoint()
        self.timers: set[WorkerTimer] = set()
        identity = Identity(node_id=NodeId(name), role=m.Role.WORKER, host="h", pid=1, standby=standby)
        self.machine = WorkerMachine(identity, RULES)
        self.connection = world.desk.connect()
        self.handle(s.Started(self.request(), None))
        self.handle(s.Connected())

    def request(self) -> RequestId:
        self.requests += 1
        return RequestId(f"{self.name}-{self.requests}")

    def handle(self, stimulus: s.WorkerStimulus) -> None:
        if not self.alive:
            return
        for effect in self.machine.handle(stimulus, self.world.desk.now):
            self.carry_out(effect)
        self.machine.check()

    def carry_out(self, effect: we.WorkerEffect) -> None:
        match effect:
            case we.Send():
                self.up.append(effect.message)
            case Persist():
                self.up.extend(step.message for step in effect.then if isinstance(step, Report))
            case we.StopAt():
                passed, stops = self.point.stop_at(effect.generation, effect.step)
                self.handle(s.Positioned(effect.generation, passed, stops, step=effect.step))
            case we.ResumeTraining():
                self.point.forget()
            case we.LeaveAsAsked():
                assert self.is_held_back, "nobody asked it"
                self.trains = False
                self.handle(s.StopAsked(self.request(), "SIGTERM"))
            case we.FindCheckpoints():
                self.look(effect)
            case we.OpenGeneration():
                self.open(effect.plan)
            case we.Interrupt():
                self.interrupted = effect.generation
            case we.SetTimer() if effect.timer is WorkerTimer.DEPART:
                self.timers.add(effect.timer)
            case Exit():
                self.die()
            case _:
                return

    def look(self, find: we.FindCheckpoints) -> None:
        """A standby finds nothing that is its own."""
        mine = self.generation > 0 or find.offer is not None
        held = self.world.held(self.rank if find.offer is None else find.offer.rank) if mine else ()
        offered = None if find.offer is None else find.offer.rank
        self.handle(s.CheckpointsFound(self.request(), find.search_id, held, rank=offered))

    def open(self, plan: m.Rollback) -> None:
        self.generation, self.rank, self.applied = plan.generation, plan.rank, plan.step
        self.trains, self.waits = True, False
        self.point.begin(plan.generation, plan.step)
        self.handle(s.StateRestored(plan.generation))

    def die(self) -> None:
        self.alive = self.trains = False
        while self.up:
            self.speak()
        self.world.desk.lose(self.connection)

    # --- what may happen next -------------------------------------------------------------------------------------------

    def speak(self) -> None:
        message = self.up.popleft()
        self.world.desk.handle(
            MessageReceived(self.connection, message, "h", ResumeToken(f"token-{self.name}-{self.requests}"))
        )
        self.world.look()

    def hear(self) -> None:
        tray = self.world.desk.tray[self.connection]
        message = tray[self.read]
        self.read += 1
        self.handle(s.MessageReceived(message))

    @property
    def hears(self) -> bool:
        return self.alive and self.read < len(self.world.desk.tray[self.connection])

    @property
    def can_step(self) -> bool:
        if not (self.alive and self.trains):
            return False
        if self.interrupted >= self.generation:
            return True
        if self.waits:
            return not self.is_stopped
        # A collective needs everybody of the world at this step.
        world = [one for one in self.world.processes if one.trains and one.generation == self.generation]
        whole = len(world) == RULES.worker_count
        return whole and self.applied < LAST_STEP and all(one.reaches(self.applied + 1) for one in world)

    @property
    def is_stopped(self) -> bool:
        return self.waits and not self.point.passes(self.applied)

    def reaches(self, step: int) -> bool:
        return self.applied >= step or (self.applied == step - 1 and not self.is_stopped)

    def step(self) -> None:
        """The main thread goes on by one step, or finds out that its generation is over."""
        if self.interrupted >= self.generation:
            self.trains = self.waits = False
            self.handle(s.TrainingStopped(Generation(self.generation), self.applied))
            return
        if self.waits:
            self.waits = False
            return
        self.applied += 1
        if self.applied % 10 == 0:
            self.world.save(self)
        if not self.point.passes(self.applied):
            self.waits = True
            if self.applied % 10:
                self.world.save(self)


class World:
    """Three ranks, a standby, a scheduler."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.desk = Desk(RULES)
        self.files: dict[int, dict[int, m.HeldCheckpoint]] = {0: {}, 1: {}, 2: {}}
        self.processes: list[Process] = []
        self.processes += [Process(self, f"worker_{number}") for number in range(3)]
        self.processes.append(Process(self, "standby_0", standby=True))
        self.handed_over = False

    def held(self, rank: int) -> tuple[m.HeldCheckpoint, ...]:
        return tuple(self.files[rank].values())

    def save(self, process: Process) -> None:
        step, generation = process.applied, process.generation
        file = checkpoint(step, generation=generation, path=f"{process.rank}/{step}")
        self.files[process.rank][step] = file
        process.handle(s.CheckpointPublished(process.request(), file))

    def look(self) -> None:
        """Whoever is sent away: everybody has saved the step and stands there."""
        sent = [
            one
            for one in self.processes
            if any(isinstance(x, HandedOver) for x in self.desk.tray[one.connection])
        ]
        drain = self.desk.machine.state.barrier
        if not sent or self.handed_over:
            return
        self.handed_over = True
        assert drain is not None, "it was begun"
        for process in self.processes:
            if process.trains and process.generation == drain.generation:
                assert process.applied == drain.step, f"{process.name} trained on"
                assert process.is_stopped, f"{process.name} does not wait"

    def act(self) -> bool:
        """One thing happens; False when nothing can."""
        choices = [process.speak for process in self.processes if process.alive and process.up]
        choices += [process.hear for process in self.processes if process.hears]
        choices += [process.step for process in self.processes if process.can_step]
        if not choices:
            return False
        self.draw.choice(choices)()
        return True

    def run(self, until: int = 10**9) -> None:
        for _ in range(until):
            if not self.act():
                return


def _sigterm(process: Process) -> None:
    if not process.alive:
        return
    first, process.is_held_back = not process.is_held_back, True
    if first:
        process.handle(s.DepartAsked(process.request(), "SIGTERM"))


def _disturb(world: World, what: str, departing: Process) -> None:
    survivor = next(one for one in world.processes[:3] if one is not departing)
    match what:
        case "standby":
            world.processes[3].die()
        case "survivor":
            survivor.die()
        case "departing":
            departing.die()
        case "another":
            _sigterm(survivor)
        case "time":
            if WorkerTimer.DEPART in departing.timers:
                departing.handle(s.TimerFired(WorkerTimer.DEPART, 0.5))
        case _:
            world.desk.at(world.desk.now + RULES.drain_timeout_ms)


@pytest.mark.parametrize(
    "what", ["nothing", "standby", "survivor", "departing", "another", "time", "scheduler's time"]
)
def test_in_whatever_order_things_happen_nobody_waits_at_a_step_for_ever(what: str) -> None:
    handed_over = 0
    for seed in range(60):
        world = World(seed)
        world.run(world.draw.randrange(60, 500))
        departing = world.draw.choice(world.processes[:3])
        _sigterm(departing)
        world.run(world.draw.randrange(60))
        if what != "nothing":
            _disturb(world, what, departing)
        world.run()
        # What is lost is known after its grace; who comes to the last step before the one that was named leaves by the timer.
        world.desk.at(world.desk.now + 2 * RULES.reconnect_grace_ms)
        world.run()
        _disturb(world, "time", departing)
        world.run()
        state = world.desk.machine.state
        ended = [event for event in world.desk.events if event.kind is EventKind.DRAIN_ENDED]
        for process in world.processes:
            assert not (process.alive and process.is_stopped), f"seed {seed}: {process.name} waits for ever"
        assert not departing.alive, f"seed {seed}: {departing.name} was to end"
        if state.barrier is not None:
            assert state.barrier.state in (BarrierState.ENDED, BarrierState.HANDING_OVER), f"seed {seed}"
        handed_over += world.handed_over
        if what == "nothing" and world.handed_over:
            assert any("no step is lost" in event.reason for event in ended), f"seed {seed}"
            assert state.job.state is JobState.RUNNING
            assert {one.applied for one in world.processes if one.alive} == {LAST_STEP}, f"seed {seed}"
    assert handed_over, "no seed came so far"
