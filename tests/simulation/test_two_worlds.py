"""A store is lost three times, and each time others of the job come to the next scheduler: two worlds train as the same ranks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.simulation.calm import calm_shape
from tests.simulation.network import DOWN, UP
from tests.simulation.shape import Spares
from tests.simulation.world import World

PATIENCE_MS = 120_000
SAVED = 75
"""A step that both worlds save."""
ALL = ("w0", "w1", "s0", "s1")


def away(world: World, *names: str) -> None:
    """These reach the scheduler no more. They train on."""
    world.network.restore()
    for name in names:
        world.network.partition(name, (UP, DOWN), 10**6)


def train(world: World, *names: str) -> Callable[[], bool]:
    """Are these, or any two of all, the ranks of the newest plan, and in its world?"""

    def do() -> bool:
        job = world.store.job
        there = {
            process.name
            for process in world.living
            if job is not None
            and process.phase == "training"
            and process.plan is not None
            and process.plan.generation == job.generation
        }
        return there >= set(names) if names else len(there) == 2

    return do


def until(world: World, done: Callable[[], bool]) -> None:
    """Let time pass until it is so."""
    world.clock.run(world.clock.now + PATIENCE_MS, done)
    assert done(), "\n".join(world.clock.log)


def two_worlds(seed: int) -> World:
    """w1 and s0 train as ranks 1 and 0 of the one, w0 and s1 of the other. The scheduler of each knows nothing of the other world's plan."""
    shape = calm_shape(seed, Spares(standbys=2, identities=True), relaunch_ms=(200, 300), window_ms=3_000)
    rules = msgspec.structs.replace(
        shape.rules,
        worker_count=2,
        server_count=0,
        lease_ms=3_000,
        reconnect_grace_ms=500,
        receive_timeout_ms=1_500,
        heartbeat_ms_min=300,
        heartbeat_ms_max=500,
    )
    world = World(
        seed, msgspec.structs.replace(shape, rules=rules, save_every=25, step_ms=(300, 300), steps=400)
    )
    until(world, train(world, "w0", "w1"))
    away(world, "w0", "s1")
    until(world, train(world, "s0", "w1"))
    away(world, "s0", "w1")
    until(world, train(world, "w0", "s1"))
    world.lose_store()
    until(world, train(world, "w0", "s1"))
    until(world, lambda: all(25 in world.disk[name] for name in ("w0", "s1")))
    away(world, "w0", "s1")
    world.lose_store()
    until(world, train(world, "s0", "w1"))
    until(world, lambda: all(SAVED in world.disk[name] for name in ALL))
    return world


@pytest.mark.parametrize(
    "absent",
    [
        pytest.param(("s1", "w1"), id="rank 0 of the one, rank 1 of the other"),
        pytest.param(("s0", "w0"), id="rank 1 of the one, rank 0 of the other"),
        pytest.param(("s0", "s1"), id="both ranks 1"),
        pytest.param(("w0", "w1"), id="both ranks 0"),
        pytest.param(("w0",), id="one world and a rank of the other"),
        pytest.param((), id="all"),
    ],
)
def test_files_of_two_worlds_are_never_taken_for_one_history(absent: tuple[str, ...]) -> None:
    """I20 is checked at each load. Where one rank of each world comes, and nothing is common, the job ends and says who holds what."""
    world = two_worlds(1)
    away(world, *absent)
    world.lose_store()

    until(world, lambda: bool(world.verdict) or train(world)())

    assert world.verdict in ("", "NO_COMMON_CHECKPOINT")
