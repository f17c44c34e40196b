"""Failures that are closer together than two saves on the disk: memory takes them, and the disk goes on all the same."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from recovery.core import messages as m
from tests.simulation import memory
from tests.simulation.process import Process
from tests.simulation.shape import Shape, Spares, shape_of
from tests.simulation.world import World

DISK_EVERY, MEMORY_EVERY, STEPS = 40, 5, 400
WRITE_STEPS = 15
"""No save on the disk takes longer: 300 ms, at 20 ms a step."""


def calm(seed: int) -> Shape:
    """Two ranks and nothing that fails by itself."""
    shape = shape_of(seed, (), workers=2, spares=Spares(memory_every=MEMORY_EVERY))
    return msgspec.structs.replace(
        shape,
        rules=msgspec.structs.replace(shape.rules, rejoin_window_ms=0),
        steps=STEPS,
        save_every=DISK_EVERY,
        step_ms=(20, 20),
        relaunch_ms=(200, 500),
        **dict.fromkeys(("stall_share", "slow_writes", "failing_saves", "hanging", "stuck_rows"), 0.0),
    )


class Kills:
    """Kills a rank whenever it has done so many steps, and looks what lies on the disks then."""

    def __init__(self, world: World, steps_apart: int) -> None:
        self._world, self._apart = world, steps_apart
        self._done = 0
        self.at: list[tuple[int, int]] = []
        """Of each kill: the step, and the newest that lay on all disks."""
        world.on_step = self._stepped

    def _stepped(self, process: Process, plan: m.Rollback, step: int) -> None:
        if plan.rank:
            return
        self._done += 1
        if self._done == self._apart:
            self._done = 0
            self._world.clock.later(0, partial(self._kill, process, step))

    def _kill(self, process: Process, step: int) -> None:
        assert self._world.scheduler is not None, "it is never killed here"
        self.at.append((step, self._world.scheduler.machine.state.checkpoints.durable_step))
        self._world.kill(process)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps_apart", [33, 37, 43])
def test_kills_closer_together_than_two_saves_do_not_keep_the_disk_from_its_commits(
    seed: int, steps_apart: int
) -> None:
    world = World(seed, calm(seed))
    kills = Kills(world, steps_apart)

    world.clock.run(600_000, lambda: bool(world.verdict))

    assert world.verdict == "FINISHED"
    assert len(kills.at) > STEPS // steps_apart - 1
    behind = [step - durable for step, durable in kills.at]
    assert max(behind) <= DISK_EVERY + steps_apart + WRITE_STEPS, kills.at
    assert len({durable for _, durable in kills.at}) > STEPS // (2 * DISK_EVERY), kills.at


def test_a_host_that_is_lost_behind_many_kills_goes_back_to_a_commit_and_not_to_the_start() -> None:
    world = World(1, calm(1))
    kills = Kills(world, 33)
    world.clock.run(600_000, lambda: len(kills.at) == 7 or bool(world.verdict))
    step, durable = kills.at[-1]

    for process in world.living:
        world.kill(process)
    for host in {slot.host for slot in world.slots.values()}:
        world.disk.lose_memory(host)
    plans: list[int] = []
    world.on_step = lambda process, plan, step: plans.append(plan.step)
    world.clock.run(600_000, lambda: bool(plans) or bool(world.verdict))

    assert plans[0] == durable > 0
    assert step - durable <= DISK_EVERY + 33 + WRITE_STEPS
    assert memory.directory_of("h0", 0) in world.disk.below("")
