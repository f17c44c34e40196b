"""Runs one seed: a safety phase with its faults, a liveness phase without, and a look at how it ended. Shrinks what fails."""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec

from recovery.core.records import RunRecord
from tests.simulation import assignments
from tests.simulation.disk_faults import disk_faults_of
from tests.simulation.drains import drains_of, hosts_leave_of
from tests.simulation.faults import DRAWN, Fault, faults_of, inject, memory_faults_of
from tests.simulation.job_stops import job_stops_of
from tests.simulation.shape import FAULTS_UNTIL_MS, LIVENESS_MS, Shape, Spares, shape_of, spares_of
from tests.simulation.world import World


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one seed."""

    seed: int
    shape: Shape
    faults: tuple[Fault, ...]
    failure: str
    """Empty: every promise was kept."""
    log: tuple[str, ...]
    fingerprint: str
    simulated_ms: int
    events: int
    checked: dict[str, int]
    seen: dict[str, int]


def run(
    seed: int,
    *,
    workers: int | None = None,
    faults: list[Fault] | None = None,
    kinds: tuple[str, ...] = DRAWN,
    spares: Spares | None = None,
    drains: bool = False,
    memory: bool = False,
    live: bool = False,
    shards: int = 1,
) -> Outcome:
    """Run a seed.

    Args:
        seed: everything else follows from it.
        workers: None: drawn from the seed.
        faults: None: drawn from the seed.
        kinds: of faults to draw from: what a seed means depends on them.
        spares: None: drawn from the seed.
        drains: ranks are asked to depart, whatever the seed says.
        memory: every second or third step is saved in memory, and hosts lose theirs.
        live: what survives a loss is gone on from in memory.
        shards: parts that the state is cut into, each held by every so many ranks.
    """
    if spares is None:
        spares = spares_of(seed)
    spares = msgspec.structs.replace(spares, drains=spares.drains or drains)
    if memory:
        spares = msgspec.structs.replace(spares, memory_every=2 + seed % 2)
    if live:
        spares = msgspec.structs.replace(spares, live=True, shards=shards)
    shape = shape_of(seed, kinds, workers=workers, spares=spares)
    drawn = (
        *faults_of(seed, shape),
        *drains_of(seed, shape),
        *job_stops_of(seed, shape),
        *hosts_leave_of(seed, shape),
        *disk_faults_of(seed, shape),
        *memory_faults_of(seed, shape),
    )
    chosen = list(drawn) if faults is None else faults
    world = World(seed, shape)
    failure = ""
    try:
        for fault in chosen:
            world.clock.later(fault.at_ms, partial(inject, world, fault))
        world.clock.later(FAULTS_UNTIL_MS, partial(_end_faults, world))
        world.clock.run(FAULTS_UNTIL_MS + LIVENESS_MS, lambda: bool(world.verdict) and not world.living)
        _check_end(world)
    except Exception as error:  # noqa: BLE001 - whatever breaks is the finding
        failure = f"{type(error).__name__}: {error}"
    return Outcome(
        seed=seed,
        shape=shape,
        faults=tuple(chosen),
        failure=failure,
        log=tuple(world.clock.log),
        fingerprint=world.clock.fingerprint,
        simulated_ms=world.clock.now,
        events=world.clock.events,
        checked=dict(world.promises.checked),
        seen=dict(world.clock.seen),
    )


def shrink(failed: Outcome, *, workers: int | None = None, drains: bool = False) -> Outcome:
    """Leave out faults as long as the same promise still breaks (delta debugging: halves first, then single ones)."""
    smallest, size = failed, max(1, len(failed.faults) // 2)
    while size:
        position, found = 0, False
        while position < len(smallest.faults):
            fewer = [*smallest.faults[:position], *smallest.faults[position + size :]]
            tried = run(failed.seed, workers=workers, faults=fewer, drains=drains)
            if _promise(tried) == _promise(failed):
                smallest, found = tried, True
            else:
                position += size
        if not found or size > 1:
            size //= 2
    return smallest


def _promise(outcome: Outcome) -> str:
    return outcome.failure.partition(": ")[2].partition(":")[0] if outcome.failure else ""


def total(outcomes: list[Outcome], field: str) -> Counter[str]:
    """Sum a table of counts over many seeds."""
    added: Counter[str] = Counter()
    for outcome in outcomes:
        added.update(getattr(outcome, field))
    return added


def _end_faults(world: World) -> None:
    world.exchange.failing = 0.0
    world.hanging = world.failing_saves = world.slow_writes = world.network.stall_share = world.late_looks = (
        0.0
    )
    world.relaunch_ms, world.step_ms = (200, 1_000), (10, 30)
    world.disk_full_until, world.next_sync_fails = 0, False
    world.network.restore()
    for process in world.living:
        if process.wire is not None and process.wire.broken:
            process.wire.near.disconnected(process.wire, "connection reset")


def _check_end(world: World) -> None:
    """I14: the job has ended, and with a reason. I20: with one history on all ranks, checked at every load."""
    job = world.store.job
    assert job is not None, "I14: there is no job"
    # The scheduler was killed after everybody had left, and relaunched: it began the next run.
    if job.run > 1:
        assert world.store.all(RunRecord)[0].outcome == "finished", (
            "I14: a next run began and the first has not ended"
        )
        return
    if world.verdict == "STORE_LOST" and _knows_two_jobs(world):
        world.clock.seen[
            "a job that was forgotten was found again beside the next: a person has to say which"
        ] += 1
        return
    if world.verdict == "NO_COMMON_CHECKPOINT":
        world.clock.seen["a job ended for want of a common checkpoint"] += 1
        return
    if world.verdict == "WAIT_TIMEOUT" and assignments.nobody_could(world):
        world.clock.seen["a job ended since no process could read a rank's files"] += 1
        unnamed = assignments.unnamed(world)
        assert not unnamed, (
            f"I14: the job waited for a rank that {unnamed} did not take, and does not say so: {job}"
        )
        return
    assert world.verdict == "FINISHED", f"I14: it failed without need, or nothing ended: {job}"
    assert world.living == [], "I14: somebody waits for ever for a scheduler that has ended"
    world.clock.seen["a job finished"] += 1
    world.promises.finished()
    world.training_end.finished()


def _knows_two_jobs(world: World) -> bool:
    """Do nodes know different jobs? The store was lost, nobody who came knew of the first, and the next one began."""
    return len({notes.job.job for notes in world.notes.values() if notes.job is not None}) > 1
