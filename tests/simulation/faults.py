"""What breaks, when. A seed's faults are a list drawn beforehand, so that a failure can be shrunk by leaving some out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from recovery.core.ids import RequestId
from recovery.core.worker import stimuli as s
from tests.simulation import memory
from tests.simulation.network import DOWN, UP
from tests.simulation.process import Process
from tests.simulation.scheduler import SchedulerProcess
from tests.simulation.shape import FAULTS_UNTIL_MS, Shape, losses_of
from tests.simulation.slots import SCHEDULER_HOST
from tests.simulation.world import World

STORE_LOST = "store lost"
MEMORY_LOST = "memory lost"
_WAYS = ((UP,), (DOWN,), (UP, DOWN))


class Fault(msgspec.Struct, frozen=True):
    """One thing that breaks."""

    at_ms: int
    kind: str
    number: int
    """Seeds the fault's own choices (whom, how long), which therefore do not depend on the other faults."""


def faults_of(seed: int, shape: Shape) -> list[Fault]:
    """Draw the faults of a seed."""
    draw = random.Random(f"{seed}/faults")
    found, at_ms = [], draw.randint(0, shape.pause_ms)
    while at_ms < FAULTS_UNTIL_MS:
        found.append(Fault(at_ms, draw.choice(shape.kinds), draw.randrange(10**6)))
        at_ms += draw.choice((1, 50, shape.pause_ms, shape.pause_ms)) * draw.randint(1, 4) // 2 + 1
    return sorted(found + _losses(seed), key=lambda fault: fault.at_ms)


def _losses(seed: int) -> list[Fault]:
    return [Fault(at_ms, STORE_LOST, number) for at_ms, number in losses_of(seed)]


def memory_faults_of(seed: int, shape: Shape) -> list[Fault]:
    """When hosts restart, in the jobs that have checkpoints in memory."""
    losses = memory.losses_of(seed) if shape.spares.memory_every else []
    return [Fault(at_ms, MEMORY_LOST, number) for at_ms, number in losses]


def inject(world: World, fault: Fault) -> None:
    """Let it happen."""
    draw = random.Random(fault.number)
    world.clock.say(f"fault {fault.kind}")
    world.clock.seen[f"fault: {fault.kind}"] += 1
    living = world.living
    whole = WHOLE.get(fault.kind)
    if whole is not None:
        whole(world, draw)
    elif living:
        ONE[fault.kind](world, draw.choice(living), draw)


# --- one process ------------------------------------------------------------------------------------------------------


def _kill(world: World, process: Process, draw: random.Random) -> None:
    world.kill(process)


def _kill_both(world: World, process: Process, draw: random.Random) -> None:
    world.kill_scheduler()
    world.kill(process)


def _cut(world: World, process: Process, draw: random.Random) -> None:
    if process.wire is not None:
        process.wire.cut("connection reset")


def _vanish(world: World, process: Process, draw: random.Random) -> None:
    if process.wire is not None:
        process.wire.vanish()


def _partition(world: World, process: Process, draw: random.Random) -> None:
    longest = 3 * world.rules.lease_ms if draw.random() < 0.3 else world.rules.lease_ms // 2
    world.network.partition(process.name, draw.choice(_WAYS), draw.randint(50, longest))


def _flap(world: World, process: Process, draw: random.Random) -> None:
    for beat in range(draw.randint(3, 10)):
        world.clock.later(
            beat * 1_000, lambda: process.wire.cut("flapping") if process.wire is not None else None
        )


def _freeze(world: World, process: Process, draw: random.Random) -> None:
    _pause(process, draw.randint(100, int(1.5 * world.rules.lease_ms)))


def _supplant(world: World, process: Process, draw: random.Random) -> None:
    """It is paused for longer than lease and window together: its place is taken meanwhile."""
    world.second(process)
    _pause(process, world.rules.lease_ms + world.rules.rejoin_window_ms + draw.randint(1_000, 5_000))


def _pause(process: Process, for_ms: int) -> None:
    process.frozen_until = _paused_until(process, for_ms)
    if for_ms > process.world.rules.lease_ms // 2:
        process.confirmed = False
        process.handle(s.PauseNoticed(for_ms))


def _paused_until(paused: Process | SchedulerProcess, for_ms: int) -> int:
    """A shorter pause ends no longer one: what waits for the end of that would come behind what is sent meanwhile."""
    return max(paused.frozen_until, paused.clock.now + for_ms)


def _impostor(world: World, process: Process, draw: random.Random) -> None:
    world.second(process)


def _raise(world: World, process: Process, draw: random.Random) -> None:
    plan = process.plan
    if plan is not None and process.phase == "training":
        world.parted(process, plan)
        process.phase = "raised"
        request = RequestId(f"raised-{draw.randrange(10**9)}")
        process.handle(s.TrainingRaised(request, plan.generation, process.step, "ValueError: x", ""))


def _stop(world: World, process: Process, draw: random.Random) -> None:
    if process.phase == "raised":
        return
    if process.plan is not None:
        world.parted(process, process.plan)
        process.phase = "raised"
    process.handle(s.StopAsked(RequestId(f"stopped-{draw.randrange(10**9)}"), "SIGTERM"))


def _rot(world: World, process: Process, draw: random.Random) -> None:
    _change(world, process, draw, good=False)


def _spoil(world: World, process: Process, draw: random.Random) -> None:
    _change(world, process, draw, fault="cut short")


def _remove(world: World, process: Process, draw: random.Random) -> None:
    _change(world, process, draw, gone=True)


def _change(world: World, process: Process, draw: random.Random, **changes: Any) -> None:
    files = world.disk[process.name]
    if files:
        step = max(files) if draw.random() < 0.7 else draw.choice(sorted(files))
        files[step] = msgspec.structs.replace(files[step], **changes)


def _copy(world: World, process: Process, draw: random.Random) -> None:
    """Another rank's newest file is copied over this one's, as a person does whose disk was lost."""
    others = [one for one in world.living if one.plan is not None and one.name != process.name]
    for other in others[:1]:
        of_both = sorted(world.disk[other.name].keys() & world.disk[process.name].keys())
        for step in of_both[-1:]:
            file = world.disk[other.name][step]
            assert other.plan is not None, "looked at above"
            here = msgspec.structs.replace(
                file.held, path=f"{process.name}/{step}", digest=f"{file.held.digest} at {process.name}"
            )
            world.disk[process.name][step] = msgspec.structs.replace(file, held=here, rank=other.plan.rank)


def _repeat(world: World, process: Process, draw: random.Random) -> None:
    if process.last_request is not None:
        process.tell(process.last_request)


# --- the whole --------------------------------------------------------------------------------------------------------


def _scheduler(world: World, draw: random.Random) -> None:
    world.kill_scheduler()


def _freeze_scheduler(world: World, draw: random.Random) -> None:
    if world.scheduler is not None:
        for_ms = draw.randint(100, int(1.5 * world.rules.lease_ms))
        world.scheduler.frozen_until = _paused_until(world.scheduler, for_ms)


def _power(world: World, draw: random.Random) -> None:
    world.kill_scheduler()
    if world.store.cut_power(draw):
        world.clock.seen["a power cut took a transaction that nobody had heard of"] += 1
    for process in world.living:
        world.kill(process)


def _disk_full(world: World, draw: random.Random) -> None:
    world.disk_full_until = world.clock.now + draw.randint(500, 10_000)


def _sync_fails(world: World, draw: random.Random) -> None:
    world.next_sync_fails = True


def _lose_store(world: World, draw: random.Random) -> None:
    """The scheduler's file is gone, and the scheduler ends by it."""
    if not world.verdict and "finished" not in world.outcomes:
        world.lose_store()


def _split(world: World, draw: random.Random) -> None:
    for name in draw.sample(world.names, draw.randint(1, len(world.names))):
        world.network.partition(name, (UP, DOWN), draw.randint(1_000, 2 * world.rules.lease_ms))


# --- slots  -----------------------------------------------------------------------------------------------------------


def _wrong_word(world: World, process: Process, draw: random.Random) -> None:
    """Its number is that of a process that has ended: before it, on another boot, or in another container. Often it is cut off just then."""
    identity = process.identity.process
    if identity is None:
        return
    others = (
        msgspec.structs.replace(identity, start_ticks=identity.start_ticks - 1),
        msgspec.structs.replace(identity, boot_id="another boot"),
        msgspec.structs.replace(identity, pid_namespace=2),
    )
    other, gives_up = draw.choice(others), draw.random() < 0.5
    delay_ms = 0
    if draw.random() < 0.7:
        _cut(world, process, draw)
        delay_ms = draw.randint(50, 400)
    world.clock.later(delay_ms, lambda: world.proofs.report(process, other, gives_up=gives_up))


def _lost_id(world: World, draw: random.Random) -> None:
    """An id that was given up for a fresh one comes again."""
    slots = [slot for slot in world.slots.values() if len(slot.ids) > 1]
    if slots and not world.verdict:
        slot = draw.choice(slots)
        world.earlier(slot, draw.choice(slot.ids[:-1]))


def _host(world: World, draw: random.Random) -> None:
    """All processes of a host are killed, the scheduler too where it is of them."""
    host = f"h{draw.randrange(world.shape.spares.hosts)}"
    for process in world.living:
        if process.slot.host == host:
            world.kill(process)
    if host == SCHEDULER_HOST:
        world.kill_scheduler()


def _memory_lost(world: World, draw: random.Random) -> None:
    """A host restarts: its processes are killed, and what was in its memory is gone."""
    host = f"h{draw.randrange(world.shape.spares.hosts)}"
    for process in world.living:
        if process.slot.host == host:
            world.kill(process)
    if world.disk.lose_memory(host):
        world.clock.seen["a host lost its memory"] += 1


def _takers(world: World, draw: random.Random) -> None:
    """The next standby that is offered a rank dies, hangs or is cut off just then, or the scheduler or the lost one does something."""
    what, delay_ms = draw.choice(sorted(IN_AN_OFFER)), draw.choice((0, 1, 5, 20, 100))

    def strike(process: Process) -> None:
        world.clock.seen[f"in an offer: {what}"] += 1
        world.clock.later(delay_ms, lambda: IN_AN_OFFER[what](world, process, draw))

    world.on_offer.append(strike)


IN_AN_OFFER: dict[str, Callable[[World, Process, random.Random], None]] = {
    "kill": _kill,
    "kill with the scheduler": _kill_both,
    "cut": _cut,
    "vanish": _vanish,
    "partition": _partition,
    "freeze": _freeze,
    "stop": _stop,
    "the scheduler is killed": lambda world, process, draw: world.kill_scheduler(),
    "the scheduler is paused": lambda world, process, draw: _freeze_scheduler(world, draw),
    "a lost id comes": lambda world, process, draw: _lost_id(world, draw),
}

ONE: dict[str, Callable[[World, Process, random.Random], None]] = {
    "kill": _kill,
    "kill with the scheduler": _kill_both,
    "cut": _cut,
    "vanish": _vanish,
    "partition": _partition,
    "flap": _flap,
    "freeze": _freeze,
    "supplant": _supplant,
    "impostor": _impostor,
    "raise": _raise,
    "stop": _stop,
    "rot": _rot,
    "spoil": _spoil,
    "remove": _remove,
    "copy": _copy,
    "repeat": _repeat,
    "wrong word": _wrong_word,
}
WHOLE: dict[str, Callable[[World, random.Random], None]] = {
    "scheduler": _scheduler,
    "freeze scheduler": _freeze_scheduler,
    "power": _power,
    "disk full": _disk_full,
    "fsync fails": _sync_fails,
    "split": _split,
    "lost id": _lost_id,
    "host": _host,
    "in an offer": _takers,
}
DRAWN = (*ONE, *WHOLE)
"""Which of them are on is drawn for each seed."""
WHOLE[STORE_LOST] = _lose_store
WHOLE[MEMORY_LOST] = _memory_lost
KINDS = (*DRAWN, STORE_LOST)
