"""What happens to the disks of a job that copies its checkpoints: a host's is lost, a copy rots."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from tests.simulation.faults import WHOLE, Fault
from tests.simulation.files import COPIES
from tests.simulation.shape import FAULTS_UNTIL_MS, Shape
from tests.simulation.world import World


def disk_faults_of(seed: int, shape: Shape) -> list[Fault]:
    """Draw them, from a stream of their own: other faults stay what they are."""
    if not shape.spares.copies:
        return []
    draw = random.Random(f"{seed}/disks")
    found, at_ms = [], draw.randint(2_000, 15_000)
    while at_ms < FAULTS_UNTIL_MS:
        found.append(Fault(at_ms, draw.choice(DRAWN), draw.randrange(10**6)))
        at_ms += draw.choice((500, 8_000, 20_000))
    return found


def _lose_disk(world: World, draw: random.Random) -> None:
    """The processes of a host are killed, and nothing lies there when they are back."""
    world.exchange.lose_disk(f"h{draw.randrange(world.shape.spares.hosts)}")


def _rot_copy(world: World, draw: random.Random) -> None:
    """A bit flips in a copy; a look does not see it."""
    places = [
        (name, step)
        for slot in world.slots.values()
        for name in world.disk.below(f"{slot.name}{COPIES}")
        for step in world.disk[name]
    ]
    if places:
        name, step = draw.choice(places)
        world.disk[name][step] = msgspec.structs.replace(world.disk[name][step], good=False)


def _cut_fetches(world: World, draw: random.Random) -> None:
    """For a while no file comes through."""
    before, world.exchange.failing = world.exchange.failing, 1.0

    def end() -> None:
        world.exchange.failing = min(before, world.exchange.failing)

    world.clock.later(draw.randint(500, 6_000), end)


KINDS: dict[str, Callable[[World, random.Random], None]] = {
    "lost disk": _lose_disk,
    "copy rots": _rot_copy,
    "fetches are cut": _cut_fetches,
}
DRAWN = (*KINDS, "lost disk")
WHOLE.update(KINDS)
