"""Launchers are asked to end the job: all ranks save a step and wait there, then their processes are ended, or nobody ends them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from recovery.core.barrier_messages import StopJob
from recovery.core.ids import RequestId, ResumeToken
from recovery.core.scheduler.stimuli import MessageReceived
from tests.simulation.faults import WHOLE, Fault
from tests.simulation.shape import FAULTS_UNTIL_MS, Shape
from tests.simulation.world import World


def job_stops_of(seed: int, shape: Shape) -> list[Fault]:
    """Draw when the job is to stop, from a stream of its own: other faults stay what they are."""
    if not shape.spares.job_stops:
        return []
    draw = random.Random(f"{seed}/job stops")
    found, at_ms = [], draw.randint(500, 8_000)
    while at_ms < FAULTS_UNTIL_MS:
        found.append(Fault(at_ms, draw.choice(tuple(KINDS)), draw.randrange(10**6)))
        at_ms += draw.randint(1_000, 15_000)
    return found


def stop_job(world: World) -> None:
    """As a launcher does, on a connection of its own."""
    scheduler = world.scheduler
    if scheduler is None or world.verdict or world.clock.now < scheduler.frozen_until:
        return
    number = world.network.next_number()
    world.clock.say("a launcher is asked to stop the job")
    # Who waits does so as long as in any other drain.
    request, within_ms = RequestId(f"stop-{number}"), world.rules.drain_timeout_ms
    stop = StopJob(request_id=request, reason="SIGTERM", within_ms=within_ms)
    scheduler.handle(MessageReceived(number, stop, "peer", ResumeToken("")))


def _stop(world: World, draw: random.Random) -> None:
    stop_job(world)


def _stop_on_all_hosts(world: World, draw: random.Random) -> None:
    for _ in range(draw.randint(2, 3)):
        world.clock.later(draw.choice((0, 1, 20, 200, 2_000)), partial(stop_job, world))


KINDS: dict[str, Callable[[World, random.Random], None]] = {
    "the job is stopped": _stop,
    "the job is stopped on all hosts": _stop_on_all_hosts,
}
WHOLE.update(KINDS)
