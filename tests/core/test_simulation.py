"""Random faults on a whole job; after the last one it must finish, and no promise may break on the way.

`SIMULATION_SEED=<n> pytest tests/core/test_simulation.py` replays one.
"""

from __future__ import annotations

import os

import msgspec
import pytest

from recovery.core import stimuli as s
from recovery.core.ids import RequestId
from recovery.core.records import RunRecord
from recovery.core.rules import Rules
from tests.core.simulation import RULES
from tests.core.surroundings import World
from tests.core.trainers import Process

FAULTS_UNTIL_MS = 25_000
LIMIT_MS = 120_000
"""Of virtual time. Far below the topology timeout of the simulation, so that a job that only waits is found."""

SEEDS = [int(os.environ["SIMULATION_SEED"])] if "SIMULATION_SEED" in os.environ else list(range(200))


KINDS = (
    *("kill", "cut", "cut", "scheduler", "both", "freeze", "freeze scheduler"),
    *("raise", "stop", "rot", "impostor", "supplant", "power"),
)


def _living(world: World) -> list[Process]:
    return [
        process
        for process in (*world.processes.values(), *world.seconds)
        if process is not None and process.alive
    ]


def _fault(world: World) -> None:
    draw = world.clock.random
    living = _living(world)
    kind = draw.choice(KINDS)
    world.clock.say(f"fault: {kind}")
    if kind in ("scheduler", "both", "power"):
        world.kill_scheduler()
    if kind == "wipe":
        world.wipe()
    if kind == "power":
        for process in living:
            world.kill(process)
    if kind == "freeze scheduler" and world.scheduler is not None:
        world.scheduler.frozen_until = world.clock.now + draw.randint(100, 5_000)
    if not living:
        return
    process = draw.choice(living)
    if kind in ("impostor", "supplant"):
        world.second(process)
    if kind == "supplant":  # a machine that stands still for longer than lease and window: its place is taken
        _freeze(process, 9_000)
    if kind in ("kill", "both"):
        world.kill(process)
    elif kind == "cut" and process.wire is not None:
        process.wire.cut("cut")
    elif kind == "freeze":
        _freeze(process, draw.randint(100, 5_000))
    elif kind == "raise" and process.plan is not None and process.phase == "training":
        plan = process.plan
        world.parted(process, plan)
        process.phase = "raised"
        process.handle(
            s.TrainingRaised(
                RequestId(f"r{draw.random()}"), plan.generation, process.step, "ValueError: x", ""
            )
        )
    elif kind == "stop" and process.phase != "raised":
        if process.plan is not None:
            world.parted(process, process.plan)
            process.phase = "raised"
        process.handle(s.StopAsked(RequestId(f"s{draw.random()}"), "SIGTERM"))
    elif kind == "rot" and (files := world.disk[process.name]):
        step = draw.choice(sorted(files))
        files[step] = (files[step][0], None)


def _freeze(process: Process, for_ms: int) -> None:
    process.frozen_until = process.clock.now + for_ms
    if for_ms > process.world.rules.lease_ms // 2:
        process.confirmed = False
        process.handle(s.PauseNoticed(for_ms))


def _faults(world: World, until_ms: int) -> None:
    if world.clock.now < until_ms:
        _fault(world)
        world.clock.soon(1, 3_000, lambda: _faults(world, until_ms))


def _calm(world: World) -> None:
    world.hanging = world.failing_saves = world.slow_writes = 0.0
    world.relaunch_ms = (200, 1_000)


def run(seed: int, rules: Rules) -> World:
    """One job with faults."""
    world = World(seed, rules)
    world.scripts = seed % 3 == 0
    world.slow_writes = world.clock.random.choice((0.0, 0.05, 0.5))
    world.steps = world.clock.random.choice((40, 100, 400))
    try:
        world.clock.soon(0, 3_000, lambda: _faults(world, FAULTS_UNTIL_MS))
        world.clock.later(FAULTS_UNTIL_MS, lambda: _calm(world))
        world.clock.run(LIMIT_MS, lambda: bool(world.verdict) and not _living(world))
        _check_end(world)
    except Exception:
        print(f"seed {seed}\n" + "\n".join(world.clock.story))
        raise
    return world


def _check_end(world: World) -> None:
    job = world.store.job
    assert job is not None
    if (
        job.run > 1
    ):  # somebody was killed after the end, before he could say that he knows: his next life starts the next run
        assert world.store.all(RunRecord)[0].outcome == "finished"
        return
    if world.verdict == "JOB_FAILED":
        assert "NO_COMMON_CHECKPOINT" in job.reason, job.reason  # a rotten file can do that
        return
    assert world.verdict == "FINISHED", f"nothing ended: {job}"
    assert _living(world) == [], "somebody waits for ever for a scheduler that has ended"
    if world.ended_ms > FAULTS_UNTIL_MS + 15_000:
        assert set(world.names) <= world.finished, f"only {sorted(world.finished)} learnt of the end"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_under_random_faults_keeps_its_promises_and_ends(seed: int) -> None:
    rules = msgspec.structs.replace(RULES, worker_count=1 + seed % 4, server_count=int(seed % 5 == 0))

    run(seed, rules)
