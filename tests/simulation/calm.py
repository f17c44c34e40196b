"""Jobs in which nothing is slow and nothing fails but what is planted: how long until training goes on after a death."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from recovery.core import messages as m
from tests.simulation.faults import DRAWN
from tests.simulation.process import Process
from tests.simulation.shape import Shape, Spares, shape_of
from tests.simulation.world import World

SETTLED_MS = 15_000
"""By then every job here trains and has saved."""

END_MS = 300_000
BACK_MS = 2_000
"""How long all that takes which is not waiting for a loss to be certain: stop, look for files, answer, plan, load, meet, one step."""


def calm_shape(seed: int, spares: Spares, *, relaunch_ms: tuple[int, int], window_ms: int = 30_000) -> Shape:
    """A seed's shape without its hardships.

    Args:
        seed: draws how many workers, how patient, how fast.
        spares: standbys and hosts.
        relaunch_ms: how soon a launcher starts a process again.
        window_ms: the rejoin window.
    """
    shape = shape_of(seed, DRAWN, spares=spares)
    rules = msgspec.structs.replace(shape.rules, rejoin_window_ms=window_ms)
    return msgspec.structs.replace(
        shape,
        rules=rules,
        steps=2_000,
        step_ms=(20, 60),
        scripts=False,
        delay_ms=(1, 3),
        stall_share=0.0,
        slow_writes=0.0,
        failing_saves=0.0,
        hanging=0.0,
        relaunch_ms=relaunch_ms,
        stuck_rows=0.0,
        drift=0.0,
    )


def trained_again_after(
    seed: int, shape: Shape, strike: Callable[[World, Process], None]
) -> tuple[int, World]:
    """Strike a worker of a job that trains, and measure until the first step of the next generation.

    Returns:
        Milliseconds of virtual time from the blow on, and the world as it is then.
    """
    world = World(seed, shape)
    first_step: list[int] = []
    begun: list[int] = []

    def on_step(process: Process, plan: m.Rollback, step: int) -> None:
        if begun and plan.generation > begun[0]:
            first_step.append(world.clock.now)

    def blow() -> None:
        assert world.store.job is not None, "it trains"
        begun.append(world.store.job.generation)
        workers = [one for one in world.living if one.phase == "training"]
        assert workers, "it trains"
        strike(world, world.clock.draw("blow").choice(workers))

    world.on_step = on_step
    world.clock.later(SETTLED_MS, partial(blow))
    world.clock.run(END_MS, lambda: bool(first_step))
    assert first_step, (
        f"I25: nothing went on within {(END_MS - SETTLED_MS) / 1000:g} s: {list(world.clock.log)}"
    )
    return first_step[0] - SETTLED_MS, world
