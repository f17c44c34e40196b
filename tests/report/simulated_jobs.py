"""Jobs with many failures, run by the real machines in virtual time, written into real stores, with the step logs beside.

Killed workers and schedulers, hosts that die whole and stay away, processes and hosts that are paused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import override

from recovery.core import messages as m
from recovery.core.records import (
    ActivityRecord,
    CheckpointRecord,
    EventRecord,
    GenerationRecord,
    Record,
    StepRecord,
)
from recovery.core.rules import Rules
from recovery.core.worker import stimuli as s
from recovery.report.timeline import Timeline, make_timeline
from recovery.store.reader import StoredEvent, Written
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.simulation.clock import Clock
from tests.simulation.process import Process
from tests.simulation.shape import Shape, shape_of
from tests.simulation.store_model import StoreModel
from tests.simulation.world import World

HEARTBEAT_MS = 1_000
LEASE_MS = 6_000
STEP_MS = (50, 200)
BEGAN_MS = 1_800_000_000_000
"""What the wall clock shows when a job begins."""
_LONGEST_MS = 1_200_000


class SimulatedJob(msgspec.Struct):
    """What is left of a job."""

    workers: int
    scheduler: list[tuple[int, tuple[Record, ...]]]
    """What was written when."""
    own: dict[str, list[tuple[int, tuple[Record, ...]]]]
    """And by each worker."""
    steps: list[dict[str, Any]]
    """The lines of the step logs."""
    faults: list[str]
    ended: bool

    def timeline(self) -> Timeline:
        """As the product makes it from these rows."""
        generations = {
            record.generation: record
            for _, records in self.scheduler
            for record in records
            if isinstance(record, GenerationRecord)
        }
        activity: dict[tuple[str, int, int], Written[ActivityRecord]] = {}
        saves: list[CheckpointRecord] = []
        for name, written in self.own.items():
            for wall_ms, records in written:
                saves += [one for one in records if isinstance(one, CheckpointRecord)]
                for one in records:
                    if isinstance(one, ActivityRecord):
                        activity[name, one.generation, one.number] = Written(one, wall_ms)
        return make_timeline(
            self.events(), generations.values(), run=1, activity=activity.values(), saves=saves
        )

    def events(self) -> list[StoredEvent]:
        """As they are read back."""
        written = (
            (wall_ms, record)
            for wall_ms, records in self.scheduler
            for record in records
            if isinstance(record, EventRecord)
        )
        return [
            StoredEvent(sequence=number, wall_ms=wall_ms, event=event)
            for number, (wall_ms, event) in enumerate(written, 1)
        ]

    def write(self, path: Path) -> None:
        """As the scheduler and the workers would have, into a new recovery path."""
        store = SchedulerStore.open(path)
        for wall_ms, records in self.scheduler:
            store.apply(records, wall_ms=wall_ms)
        store.close()
        for name, written in self.own.items():
            own = WorkerStore.open(path, name)
            for wall_ms, records in written:
                own.apply(records, wall_ms=wall_ms)
            own.close()


class _Logged(StoreModel):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.log: list[tuple[int, tuple[Record, ...]]] = []

    @override
    def commit(self, batch: tuple[Record, ...]) -> None:
        super().commit(batch)
        if batch:
            self.log.append((BEGAN_MS + self._clock.now, batch))


def simulate(seed: int) -> SimulatedJob:
    """Run a job from its start to its end."""
    draw = random.Random(f"{seed}/story")
    shape = _shape(seed, draw)
    world = World(seed, shape)
    store = world.store = _Logged(world.clock)
    own: dict[str, list[tuple[int, tuple[Record, ...]]]] = {}
    steps: list[dict[str, Any]] = []
    faults: list[str] = []

    def recorded(process: Process, records: tuple[Record, ...]) -> None:
        kept = tuple(
            one for one in records if isinstance(one, (ActivityRecord, StepRecord, CheckpointRecord))
        )
        if kept:
            own.setdefault(process.name, []).append((BEGAN_MS + world.clock.now, kept))

    def stepped(process: Process, plan: m.Rollback, step: int) -> None:
        assert process.machine.admitted is not None, "it trains"
        line = {"rank": plan.rank, "generation": plan.generation, "step": step}
        line |= {
            "incarnation": process.machine.admitted.incarnation,
            "wall_ms": BEGAN_MS + world.clock.now,
        }
        steps.append(line)

    world.on_note, world.on_step = recorded, stepped
    at_ms = 8_000
    for _ in range(draw.randint(1, 5)):
        at_ms += draw.randint(2_000, 25_000)
        world.clock.later(at_ms, partial(_happen, world, draw.choice(sorted(FAULTS)), draw, faults))
    world.clock.run(_LONGEST_MS, lambda: bool(world.verdict) and not world.living)
    return SimulatedJob(
        workers=shape.rules.worker_count,
        scheduler=store.log,
        own=own,
        steps=steps,
        faults=faults,
        ended=world.verdict == "FINISHED",
    )


def _shape(seed: int, draw: random.Random) -> Shape:
    rules = Rules(
        worker_count=draw.choice((1, 2, 2, 3, 4)),
        lease_ms=LEASE_MS,
        rejoin_window_ms=draw.choice((0, LEASE_MS)),
        reconnect_grace_ms=500,
        topology_timeout_ms=600_000,
        abort_timeout_ms=1_000,
        receive_timeout_ms=LEASE_MS // 2,
        heartbeat_ms_min=600,
        heartbeat_ms_max=HEARTBEAT_MS,
    )
    return msgspec.structs.replace(
        shape_of(seed, ()),
        rules=rules,
        steps=400,
        step_ms=STEP_MS,
        save_every=draw.choice((10, 25, 60)),
        scripts=draw.random() < 0.3,
        drift=0.001,
        stuck_rows=0.0,
        delay_ms=(1, 8),
        stall_share=0.0,
        slow_writes=0.0,
        failing_saves=0.0,
        hanging=draw.choice((0.0, 0.2)),
        relaunch_ms=(200, 4_000),
    )


# --- what happens ----------------------------------------------------------------------------------------------------------


def _happen(world: World, kind: str, draw: random.Random, faults: list[str]) -> None:
    faults.append(f"{world.clock.now / 1000:.1f} s {kind}")
    if not world.verdict:
        FAULTS[kind](world, draw)


def _kill(world: World, draw: random.Random) -> None:
    if world.living:
        world.kill(draw.choice(world.living))


def _kill_scheduler(world: World, draw: random.Random) -> None:
    world.kill_scheduler()


def _kill_both(world: World, draw: random.Random) -> None:
    world.kill_scheduler()
    _kill(world, draw)


def _kill_host(world: World, draw: random.Random) -> None:
    """All at once, and nobody comes back for a while."""
    dead_ms, usual = draw.choice((3_000, 20_000, 75_000)), world.relaunch_ms
    world.relaunch_ms = (dead_ms, dead_ms + 1_000)
    world.kill_scheduler()
    for process in world.living:
        world.kill(process)
    world.relaunch_ms = usual


def _pause(world: World, draw: random.Random) -> None:
    if world.living:
        _freeze(world, [draw.choice(world.living)], draw.choice((3_500, 5_000, 9_000)))


def _pause_host(world: World, draw: random.Random) -> None:
    for_ms = draw.choice((3_500, 5_000, 40_000))
    if world.scheduler is not None:
        world.scheduler.frozen_until = world.clock.now + for_ms
    _freeze(world, world.living, for_ms)


def _freeze(world: World, processes: list[Process], for_ms: int) -> None:
    for process in processes:
        process.frozen_until = world.clock.now + for_ms
        if for_ms > LEASE_MS // 2:
            process.confirmed = False
            process.handle(s.PauseNoticed(for_ms))


FAULTS: dict[str, Callable[[World, random.Random], None]] = {
    "a worker is killed": _kill,
    "the scheduler is killed": _kill_scheduler,
    "the scheduler and a worker are killed": _kill_both,
    "the host dies": _kill_host,
    "a worker is paused": _pause,
    "the host is paused": _pause_host,
}
