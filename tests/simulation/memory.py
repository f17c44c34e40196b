"""The memory tier in the simulation: each rank saves to its host's memory between its saves on the disk, and hosts lose theirs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.tiers import MEMORY_DIRECTORY_PREFIX
from recovery.core.worker import stimuli as s
from tests.simulation.files import Saved, checkpoint
from tests.simulation.shape import FAULTS_UNTIL_MS

if TYPE_CHECKING:
    from tests.simulation.process import Process

KEPT_MAX = 5
"""The newest that all ranks hold, and the two newest; what lies in other hosts' memory, and what is being copied there."""


def of_host(host: str) -> str:
    """What the names of the directories in a host's memory begin with."""
    return f"{MEMORY_DIRECTORY_PREFIX}{host}/"


def directory_of(host: str, rank: int) -> str:
    """Where a rank's checkpoints lie in the memory of a host."""
    return f"{of_host(host)}{rank}"


def host_of(directory: str) -> str:
    """In whose memory a directory is; empty: it is on a disk."""
    is_in_memory = directory.startswith(MEMORY_DIRECTORY_PREFIX)
    return directory.removeprefix(MEMORY_DIRECTORY_PREFIX).partition("/")[0] if is_in_memory else ""


def losses_of(seed: int) -> list[tuple[int, int]]:
    """When hosts lose their memory, and a number for each, from a stream of their own."""
    draw = random.Random(f"{seed}/memory")
    times = sorted(draw.randrange(FAULTS_UNTIL_MS) for _ in range(draw.randint(1, 6)))
    return [(at_ms, draw.randrange(10**6)) for at_ms in times]


class AuthMethod:
    """What a process knows in a generation of what all ranks hold, as `worker/training_control.py` keeps it."""

    def __init__(self, pinned_in_memory: tuple[int, ...] = ()) -> None:
        self.committed = self.previous_durable_step = self.durable = 0
        self.pinned_in_memory = pinned_in_memory

    def note(self, step: int, durable_step: int | None) -> None:
        """All ranks hold this step, and that one on their disks; None: it is the same."""
        self.committed = max(self.committed, step)
        durable_step = step if durable_step is None else durable_step
        if durable_step > self.durable:
            self.previous_durable_step, self.durable = self.durable, durable_step


class MemorySaves:
    """What `training/memory_checkpoints.py` does, for one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._every = process.world.shape.spares.memory_every
        self._under_way: tuple[m.Rollback, int] | None = None

    def begin(self, plan: m.Rollback) -> None:
        """A generation begins: what is newer than its step was rolled back."""
        self._under_way = None
        if not self._every:
            return
        place = self._place(plan)
        self._process.world.notes[self._process.name].places.add(place)
        files = self._process.world.disk[place]
        for step in [one for one in files if one > plan.step or files[one].held.run != plan.run]:
            self._process.world.disk.let_go(place, step)

    def trained(self, plan: m.Rollback, step: int) -> None:
        """A step is done that does not go to the disk."""
        if not self._every or step % self._every:
            return
        self.finish()
        self._make_space(plan)
        self._under_way = (plan, step)
        clock = self._process.clock
        clock.soon("memory", 1, 150, lambda: self.finish() if self._under_way == (plan, step) else None)

    def finish(self) -> None:
        """The save under way is complete. A process that is killed before leaves nothing."""
        if self._under_way is None or not self._process.alive:
            return
        (plan, step), self._under_way = self._under_way, None
        place, process = self._place(plan), self._process
        there = process.world.disk[place].get(step)
        if there is not None and there.held.generation > plan.generation:
            return
        content = process.trained_content(plan)
        file = checkpoint(plan, step, place, content)
        process.world.disk[place][step] = Saved(held=file, content=content, rank=plan.rank, job=plan.job)
        process.clock.seen["a step was saved in memory"] += 1
        process.handle(s.CheckpointPublished(process.request(), file))

    def _make_space(self, plan: m.Rollback) -> None:
        disk, place = self._process.world.disk, self._place(plan)
        held = sorted(disk[place], reverse=True)
        committed = [step for step in held if step <= self._process.known.committed][:1]
        known = self._process.known
        newest = committed if committed == held[:1] else {*held[:2], *committed}
        kept = {step for step in newest if step >= known.durable}
        kept |= {step for step in held if step in known.pinned_in_memory}
        assert len(kept) <= KEPT_MAX, f"I17: {self._process.name} holds steps {kept} in memory"
        for step in held:
            if step not in kept:
                disk.let_go(place, step)

    def _place(self, plan: m.Rollback) -> str:
        return directory_of(self._process.slot.host, int(plan.rank))
