"""What is asked of ranks that are to depart, when, and what happens to them in the middle of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from recovery.core import messages as m
from recovery.core.barrier_messages import StopJob
from recovery.core.ids import RequestId, ResumeToken
from recovery.core.scheduler import barrier_ends, leave_requests
from recovery.core.scheduler.stimuli import DrainAsked, MessageReceived
from tests.simulation.faults import IN_AN_OFFER, WHOLE, Fault
from tests.simulation.process import Process
from tests.simulation.shape import FAULTS_UNTIL_MS, Shape
from tests.simulation.stops import STAGES
from tests.simulation.world import World

Strike = Callable[[World, Process, random.Random], None]


def drains_of(seed: int, shape: Shape) -> list[Fault]:
    """Draw when whose rank is to be handed over, from a stream of its own: other faults stay what they are."""
    if not shape.spares.drains:
        return []
    draw = random.Random(f"{seed}/drains")
    found, at_ms = [], draw.randint(500, 8_000)
    while at_ms < FAULTS_UNTIL_MS:
        found.append(Fault(at_ms, draw.choice(DRAWN), draw.randrange(10**6)))
        at_ms += draw.choice((20, 1_000, 6_000, 12_000)) * draw.randint(1, 3) // 2 + 1
    return found


def _ranks(world: World) -> list[Process]:
    """Who trains."""
    return [one for one in world.living if one.role is m.Role.WORKER and one.phase == "training"]


def send_signal(world: World, process: Process) -> None:
    """To whatever program it runs by now."""
    for one in world.living:
        if one.identity is process.identity:
            one.stop_asked.signal()


def _signal(world: World, draw: random.Random) -> None:
    trained = _ranks(world)
    everybody = trained if trained and draw.random() < 0.9 else world.living
    everybody = [one for one in everybody if one.role is m.Role.WORKER]
    if everybody:
        send_signal(world, draw.choice(everybody))


def _two_signals(world: World, draw: random.Random) -> None:
    for process in draw.sample(_ranks(world), min(2, len(_ranks(world)))):
        world.clock.later(draw.choice((0, 0, 1, 5, 50, 400)), partial(send_signal, world, process))


def drain_target(world: World, target: str) -> None:
    """A person asks the scheduler, as `recovery drain` does."""
    scheduler = world.scheduler
    if scheduler is None or world.clock.now < scheduler.frozen_until:
        return
    state = scheduler.machine.state
    nodes, host = leave_requests.named(state, target)
    if not nodes or barrier_ends.why_not(state, nodes, host):
        world.clock.seen["a person's drain was refused"] += 1
        return
    world.clock.say(f"recovery drain {target}")
    world.clock.seen["a person drained a host" if host else "a person drained a node"] += 1
    world.drains.named(scheduler, nodes)
    scheduler.handle(DrainAsked(nodes, host, f"recovery drain {target}"))


def hosts_leave_of(seed: int, shape: Shape) -> list[Fault]:
    """Draw when hosts are to be taken away, from a stream of its own: other faults stay what they are."""
    draw, found = random.Random(f"{seed}/hosts leave"), list[Fault]()
    at_ms = draw.randint(500, 8_000)
    while shape.spares.hosts_leave and at_ms < FAULTS_UNTIL_MS:
        found.append(Fault(at_ms, _HOST_LEAVES, draw.randrange(10**6)))
        at_ms += draw.randint(2_000, 20_000)
    return found


def _host_leaves(world: World, draw: random.Random) -> None:
    """As a launcher says it, on a connection of its own; a part of them says it again, on another one."""
    scheduler = world.scheduler
    if scheduler is None or world.verdict or world.clock.now < scheduler.frozen_until:
        return
    nodes, host = leave_requests.named(
        scheduler.machine.state, f"h{draw.randrange(world.shape.spares.hosts)}"
    )
    if not nodes:
        return
    world.clock.say(f"{host} is to be taken away")
    request, within_ms = RequestId(f"leave-{world.network.next_number()}"), world.rules.drain_timeout_ms
    asked = StopJob(request_id=request, reason="a notice", within_ms=within_ms, nodes=nodes)

    def say() -> None:
        if world.scheduler is scheduler:
            world.drains.named(scheduler, nodes)
            connection = world.network.next_number()
            scheduler.handle(MessageReceived(connection, asked, "peer", ResumeToken("")))

    say()
    if draw.random() < 0.3:
        world.clock.later(draw.choice((1, 50, 500, 3_000)), say)


def _drain_node(world: World, draw: random.Random) -> None:
    trained = _ranks(world)
    if trained:
        drain_target(world, draw.choice(trained).name)


def _drain_host(world: World, draw: random.Random) -> None:
    drain_target(world, f"h{draw.randrange(world.shape.spares.hosts)}")


def _in_a_drain(world: World, draw: random.Random) -> None:
    """A rank is to depart, and something happens at a stage of it."""
    what, stage = draw.choice(sorted(IN_A_DRAIN)), draw.choice(STAGES)
    delay_ms = draw.choice((0, 0, 1, 5, 20, 200))

    def strike(process: Process) -> None:
        world.clock.say(f"in a drain, {stage}: {what} {process.name}")
        world.clock.seen[f"in a drain: {what}"] += 1
        world.clock.later(delay_ms, lambda: IN_A_DRAIN[what](world, process, draw))

    world.drains.on_stage[stage].append(strike)
    (_signal if draw.random() < 0.7 else _drain_node)(world, draw)


def _standby(world: World, process: Process, draw: random.Random) -> None:
    for one in world.living:
        if one.slot.standby and one.plan is None:
            world.kill(one)


IN_A_DRAIN: dict[str, Strike] = {
    **{what: strike for what, strike in IN_AN_OFFER.items() if what != "a lost id comes"},
    "the standbys are killed": _standby,
    "a second signal": lambda world, process, draw: send_signal(world, process),
    "another is asked to end": lambda world, process, draw: _signal(world, draw),
    "a host is drained": lambda world, process, draw: _drain_host(world, draw),
    "the disk is full": lambda world, process, draw: WHOLE["disk full"](world, draw),
    "the scheduler's write fails": lambda world, process, draw: WHOLE["fsync fails"](world, draw),
    "the network splits": lambda world, process, draw: WHOLE["split"](world, draw),
}

KINDS: dict[str, Callable[[World, random.Random], None]] = {
    "sigterm": _signal,
    "two sigterms": _two_signals,
    "drain a node": _drain_node,
    "drain a host": _drain_host,
    "in a drain": _in_a_drain,
}
DRAWN = (*KINDS, "sigterm", "in a drain", "in a drain")
_HOST_LEAVES = "a host is to be taken away"
WHOLE.update({**KINDS, _HOST_LEAVES: _host_leaves})
