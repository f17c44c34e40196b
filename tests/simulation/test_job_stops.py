"""Jobs that are asked to stop, under random faults and in a job in which nothing else happens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from tests.simulation.calm import SETTLED_MS, calm_shape
from tests.simulation.job_stops import stop_job
from tests.simulation.run import run
from tests.simulation.shape import Spares, losses_of
from tests.simulation.test_drains import SPARES as WITH_DRAINS
from tests.simulation.world import World

SPARES = Spares(hosts=2, identities=True, exits_seen=0.5, job_stops=True)
BESIDE_DRAINS = msgspec.structs.replace(WITH_DRAINS, job_stops=True)
FEW, MANY = range(6), range(80)
"""Seeds of the gate, and of `make test-all`."""
CALM = 10
_AMONG = ("kill", "cut", "vanish", "scheduler", "freeze scheduler", "freeze", "rot", "disk full")

WORTH_REACHING = (
    "fault: the job is stopped",
    "fault: the job is stopped on all hosts",
    "a job was saved for its end",
    "a job was not saved for its end",
    "nobody ended a job that was saved for that",
)


def kept(seeds: Iterable[int]) -> Counter[str]:
    """Run the seeds; what they reached."""
    seen: Counter[str] = Counter()
    for spares in (SPARES, BESIDE_DRAINS):
        for seed in seeds:
            if losses_of(seed):
                continue
            outcome = run(seed, workers=3, kinds=_AMONG, spares=spares)
            assert not outcome.failure, "\n".join((*outcome.log, f"seed {seed}", outcome.failure))
            seen.update(outcome.seen)
    return seen


def test_stopped_jobs_keep_every_promise_under_a_few_seeds() -> None:
    assert kept(FEW)["a job was saved for its end"] > 0


@pytest.mark.slow
def test_stopped_jobs_keep_every_promise_in_the_middle_of_everything_else() -> None:
    seen = kept(MANY)
    assert [name for name in WORTH_REACHING if not seen[name]] == []


def test_in_a_calm_job_the_next_start_goes_on_where_all_were_stopped() -> None:
    for seed in range(CALM):
        shape = calm_shape(seed, Spares(identities=True), relaunch_ms=(2_000, 3_000))
        world = World(seed, shape)
        begun: list[int] = []
        world.on_step = lambda process, plan, step, begun=begun: (  # type: ignore[misc]  # bound per turn
            begun.append(plan.step) if plan.generation > 1 else None
        )
        after_ms = SETTLED_MS + random.Random(seed).randrange(500)
        world.clock.later(after_ms, lambda world=world: stop_job(world))  # type: ignore[misc]  # bound per turn
        world.clock.run(SETTLED_MS + 60_000, lambda begun=begun: bool(begun))  # type: ignore[misc]  # bound per turn
        assert world.clock.seen["a job was saved for its end"] == 1, f"seed {seed}: {list(world.clock.log)}"
        assert world.scheduler is not None
        drain = world.scheduler.machine.state.barrier
        assert drain is not None
        if begun:
            assert begun[0] == drain.step, f"seed {seed}: {list(world.clock.log)}"
        else:
            assert world.clock.seen["nobody ended a job that was saved for that"] == 1
