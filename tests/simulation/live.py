"""Live rollback in the simulation: what survives a loss in memory, and a transfer that may break, or give what was not asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.ids import Rank
from recovery.core.worker import stimuli as s
from tests.simulation.files import Content

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

_TORN = 0.2
"""How many main threads are interrupted between an optimizer's step and the end of the step."""
_AHEAD = 0.3
"""How often a rank that dies has done its part of the step, so that some of the others finish it."""
_SPOILED = 0.2
"""How many sources find that what they hold is not what it was."""
_DAMAGED = 0.1
"""How many ranks take other bytes than were given."""
_WRONG = -1
"""Instead of a generation: in the history of a rank that took other bytes than were given. No two ranks take the same ones."""
STRUCTURE = "shapes"


class LiveMemory:
    """What one process holds of its training, between two generations."""

    def __init__(self, process: Process) -> None:
        """Nothing yet."""
        self._process = process
        self.state: m.LiveState | None = None
        """Set while it can be given to others."""
        self.content: Content = ()
        """How the weights of `state` came to be."""
        self.has_taken = False
        """In this generation it holds the state of its plan, and so do all others."""
        self._taken = False
        """It has taken the state of its plan, and waits to hear that all have taken the same."""

    def forget(self) -> None:
        """Something else is loaded into the same objects."""
        self.state, self.has_taken = None, True

    def loaded(self, plan: m.Rollback, content: Content) -> None:
        """The plan's checkpoint is loaded, to be given to all."""
        self.content = content
        self.state = m.LiveState(
            run=plan.run,
            generation=plan.generation,
            step=plan.step,
            epoch=plan.epoch,
            step_in_epoch=plan.step_in_epoch,
            structure=f"{STRUCTURE} of part {self._part(plan)}",
            replicas=self._replicas(plan),
        )

    def left(self, plan: m.Rollback) -> tuple[m.LiveState | None, str]:
        """The training function is left; what it has in its memory now, and why it has nothing."""
        if not self._process.world.shape.spares.live:
            return None, ""
        has_taken, self.has_taken, self._taken = self.has_taken, False, False
        draw, step = self._process.clock.draw("live"), self._process.step
        if not has_taken:
            # The state of the generation before, unless a transfer into it has begun.
            if self.state is not None and plan.rank != plan.live_rank and draw.random() < 0.5:
                self.state = None
            return self.state, "" if self.state is not None else "the transfer was broken off"
        assert not is_wrong(self._process.content), "I31: it trains on another state than the others"
        if step > plan.step and draw.random() < _TORN:
            self._process.clock.seen["a state in memory was torn"] += 1
            self.state = None
            return None, f"an optimizer had begun step {step + 1}"
        process = self._process
        self.content = process.trained_content(plan) if step > plan.step else process.content
        self.state = m.LiveState(
            run=plan.run,
            generation=plan.generation,
            step=step,
            epoch=1,
            step_in_epoch=step,
            structure=f"{STRUCTURE} of part {self._part(plan)}",
            replicas=self._replicas(plan),
        )
        return self.state, ""

    def _part(self, plan: m.Rollback) -> int:
        return plan.rank % self._process.world.shape.spares.shards

    def _replicas(self, plan: m.Rollback) -> tuple[Rank, ...]:
        """The ranks that hold the same part, where there are parts."""
        shards = self._process.world.shape.spares.shards
        return (
            tuple(Rank(rank) for rank in range(self._part(plan), plan.world_size, shards))
            if shards > 1
            else ()
        )

    def take(self, plan: m.Rollback, content: Content) -> None:
        """The state of the plan is here."""
        process = self._process
        if process.clock.draw("live").random() < _DAMAGED:
            process.clock.seen["a rank took another state than the others"] += 1
            content = ((_WRONG, plan.rank, ""),)
        else:
            process.world.promises.loaded(process, plan, content)
        process.content, self._taken = content, True
        if plan.rank != plan.live_rank:
            self.state = None
        # The bytes of two parts are never alike.
        process.handle(s.StateRestored(plan.generation, content=f"{content} of part {self._part(plan)}"))

    def begin(self, generation: int) -> None:
        """The scheduler has compared what all have taken."""
        process = self._process
        plan = process.plan
        if plan is None or plan.generation != generation or process.phase != "taking" or not self._taken:
            return
        self.has_taken, process.phase = True, "training"
        process.world.agreed(process, plan)


def is_wrong(content: Content) -> bool:
    """Did its rank take other bytes than were given?"""
    return content[:1] != () and content[0][0] == _WRONG


def transfer(world: World, plan: m.Rollback, plane: list[Process]) -> None:
    """All ranks are in the world: the source gives what it holds."""
    if len(plane) < plan.world_size or any(rank.phase != "taking" for rank in plane):
        return
    if any(world.clock.now < rank.frozen_until for rank in plane):
        world.clock.later(50, lambda: transfer(world, plan, plane))
        return
    plans = {rank.plan.rank: rank.plan for rank in plane if rank.plan is not None}
    sources = {rank.plan.rank: rank for rank in plane if rank.plan and rank.plan.rank == rank.plan.live_rank}
    for rank, source in sources.items():
        world.promises.given(source, plans[rank])
    of_checkpoint = not plan.live_structure
    if world.clock.draw("live").random() < _SPOILED or (of_checkpoint and world.shape.spares.shards > 1):
        world.clock.seen["a source could not give its state"] += 1
        number, source = world.clock.draw("live").choice(sorted(sources.items(), key=lambda item: item[0]))
        source.live.state, source.phase = None, "rejected"
        bad = s.CheckpointRejected(
            source.request(), plan.generation, plan.step, f"live:{number}", "it has changed"
        )
        source.handle(bad)
        return
    where = "one rank's checkpoint" if of_checkpoint else "a survivor's memory"
    world.clock.seen[f"a state was taken from {where}"] += 1
    contents = {rank: source.live.content for rank, source in sources.items()}
    for one in list(plane):
        assert one.plan is not None, "who takes has a plan"
        assert one.plan.live_rank is not None, "all of them have a source"
        one.live.take(one.plan, contents[one.plan.live_rank])


def some_step_on(world: World, gone: Process, plan: m.Rollback, plane: list[Process]) -> None:
    """A rank has died behind its part of a step: some of the others finish that."""
    if gone.alive or not world.shape.spares.live or gone.phase != "training" or gone.is_over:
        return
    draw = world.clock.draw("live")
    if draw.random() >= _AHEAD:
        return
    for other in list(plane):
        is_there = other.phase == "training" and other.step == gone.step and not other.stop_asked.waits
        awake = other.confirmed and world.clock.now >= other.frozen_until
        if is_there and awake and other.interrupted < plan.generation and draw.random() < 0.5:
            world.clock.seen["a survivor finished the step in which another died"] += 1
            other.trained(gone.step + 1)
