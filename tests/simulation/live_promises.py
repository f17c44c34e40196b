"""What live rollback promises, counted again from what the ranks said.

I30  a plan goes to the memory of a rank that holds a whole state of the lineage, to the newest there is, and nowhere else if there is one;
     or to one rank's checkpoint of a step that was committed and that others have lost, if that is newer
I31  each part of the state has one source in a generation, and all ranks hold what it gave before anything is committed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from recovery.core import messages as m
from recovery.core.ids import Rank
from recovery.core.records import CheckpointRecord, CheckpointState, JobState
from tests.simulation.live import is_wrong

if TYPE_CHECKING:
    from recovery.core.scheduler.node import Node
    from tests.simulation.process import Process
    from tests.simulation.promises import Promises
    from tests.simulation.scheduler import SchedulerProcess
    from tests.simulation.world import World


class LivePromises:
    """What ranks have said of their memory."""

    def __init__(self, world: World, promises: Promises) -> None:
        """Nobody has said anything."""
        self._world, self._promises = world, promises
        self._claims: dict[str, m.LiveState | None] = {}
        """By id, as its newest Ready said."""
        self._refused: set[int] = set()
        self._sources: dict[tuple[int, int, int], int | None] = {}
        """By run, generation and part of the state."""
        self._contents: dict[tuple[int, int], set[str]] = {}
        """By generation and part: what ranks have said that they took."""
        self._was_forming = False

    def scheduler_started(self) -> None:
        """Everybody says again what it has."""
        self._claims.clear()
        self._refused.clear()
        self._contents.clear()

    def before(self, scheduler: SchedulerProcess) -> None:
        """Note what the job was before a stimulus."""
        self._was_forming = scheduler.machine.state.job.state is JobState.FORMING

    def note(self, node: Node, message: m.FromNode, sent_generation: int, generation: int) -> None:
        """A node has spoken."""
        if isinstance(message, m.Ready) and message.generation >= sent_generation:
            self._claims[node.record.node_id] = message.live
        elif isinstance(message, m.CheckpointInvalid) and message.path.startswith("live:"):
            if message.generation == generation:
                self._refused.add(message.step)
        elif isinstance(message, m.StateLoaded) and message.generation == generation and message.content:
            part = int(node.record.rank or 0) % self._world.shape.spares.shards
            contents = self._contents.setdefault((generation, part), set())
            contents.add(message.content)
            if len(contents) > 1:
                self._refused.add(message.step)

    def is_live(self, scheduler: SchedulerProcess, plan: m.Rollback) -> bool:
        """I30: is it a plan to a rank's memory, and rightly?"""
        if not self._world.shape.spares.live:
            return False
        self._promises.checked["I30"] += 1
        newest_common = self._promises.newest_common(scheduler, plan.run)
        states = {
            node.record.rank: state
            for node in scheduler.machine.state.workers
            if (state := self._claims.get(node.record.node_id)) is not None
            if state.run == plan.run and state.step not in self._refused and state.step > newest_common
            if self._promises.is_past(state)
        }
        newest = max(
            (step for step in {state.step for state in states.values()} if self._is_whole(states, step)),
            default=0,
        )
        if self._of_checkpoint(scheduler, plan, max(newest, newest_common)):
            return True
        if plan.live_rank is None:
            assert not newest or self._was_forming, (
                f"I30: the plan goes to step {plan.step}, and a rank holds step {newest} in its memory: {states}"
            )
            return False
        self._world.clock.seen["a plan went to a survivor's memory"] += 1
        assert plan.live_rank in states, f"I30: rank {plan.live_rank} has nothing that may be given: {states}"
        assert plan.step == states[plan.live_rank].step == newest, (
            f"I30: the plan goes to step {plan.step}, the newest in memory is {newest}"
        )
        shards = self._world.shape.spares.shards
        assert (plan.live_rank - plan.rank) % shards == 0, (
            f"I30: rank {plan.rank} would get another part: {plan}"
        )
        if shards > 1:
            self._world.clock.seen["each part had a source of its own"] += 1
            assert plan.live_replicas == tuple(range(plan.rank % shards, plan.world_size, shards)), plan
        return True

    def _of_checkpoint(self, scheduler: SchedulerProcess, plan: m.Rollback, newest: int) -> bool:
        """Does the plan go to one rank's checkpoint? It must where all ranks held a newer step once, and one holds it still."""
        held, newest_committed = self._held(scheduler, plan.run, newest)
        if plan.live_rank is None or plan.live_structure:
            assert not newest_committed, (
                f"I30: the plan goes to step {plan.step}, and a rank holds step {newest_committed}, which all held: {held}"
            )
            return False
        self._world.clock.seen["a plan went to one rank's checkpoint"] += 1
        assert (plan.live_rank, plan.step) in held, (
            f"I30: rank {plan.live_rank} has no such checkpoint: {plan}"
        )
        assert plan.step >= newest_committed, f"I30: {plan} is not the newest of {held}"
        return True

    def _held(self, scheduler: SchedulerProcess, run: int, newest: int) -> tuple[set[tuple[int, int]], int]:
        """Checkpoints (rank, step) that may be given, newer than a step; and the newest that all ranks held once, 0: none."""
        held = {
            (int(node.record.rank), step)
            for node in scheduler.machine.state.workers
            for step, one in self._promises.claims_of(node.record.node_id).items()
            if node.record.rank is not None and one.run == run and step > newest
            if step not in self._refused and self._promises.is_past(one)
        }
        committed = {
            row.step
            for row in self._world.store.all(CheckpointRecord)
            if row.run == run and row.state is CheckpointState.COMMITTED and self._promises.is_past(row)
        }
        return held, max((step for _, step in held if step in committed), default=0)

    def failed(self, scheduler: SchedulerProcess, run: int) -> None:
        """I30: no job ends for want of a common checkpoint while a rank can give one to all."""
        if self._world.shape.spares.live:
            held, newest = self._held(scheduler, run, 0)
            assert not newest, f"I30: the job ended, and a rank holds step {newest}, which all held: {held}"

    def _is_whole(self, states: Mapping[Rank | None, m.LiveState], step: int) -> bool:
        """Does some rank hold each part of this step?"""
        shards = self._world.shape.spares.shards
        parts = {rank % shards for rank, state in states.items() if rank is not None and state.step == step}
        if len(parts) < shards:
            self._world.clock.seen["a part of a step was in no memory"] += 1
        return len(parts) == shards

    def planned(self, plan: m.Rollback) -> None:
        """What is newer than a plan is trained again: a state of it is another one than that which was refused."""
        self._refused = {step for step in self._refused if step <= plan.step}

    def one_source(self, plan: m.Rollback) -> None:
        """I31: all ranks of a generation that hold the same part are sent to one source."""
        part = plan.rank % self._world.shape.spares.shards
        known = self._sources.setdefault((plan.run, plan.generation, part), plan.live_rank)
        assert known == plan.live_rank, (
            f"I31: generation {plan.generation} goes to rank {known}, and to rank {plan.live_rank}"
        )

    def only_sent(self, plans: Iterable[tuple[int, int, int]]) -> None:
        """Of all plans that were made, these were sent: the numbers of others are given again."""
        numbers = {plan[:2] for plan in plans}
        self._sources = {number: rank for number, rank in self._sources.items() if number[:2] in numbers}

    def given(self, source: Process, plan: m.Rollback) -> None:
        """I30: who gives its state has said that it is whole."""
        self._promises.checked["I30"] += 1
        state = source.live.state
        assert state is not None, f"I30: {source.name} gives a state of step {plan.step} that is not whole"
        assert (state.run, state.step) == (plan.run, plan.step), (
            f"I30: {source.name} gives {state} for {plan}"
        )

    def committed(self, message: m.Committed) -> None:
        """I31: no rank's file of a committed step is of another state than the others'."""
        self._promises.checked["I31"] += 1
        for row in self._world.store.all(CheckpointRecord):
            if (row.run, row.step) == (message.run, message.step) and row.state is CheckpointState.COMMITTED:
                file = self._world.disk.was_at(row.path)
                assert file is None or not is_wrong(file.content), f"I31: {row} is of another state"

    def finished(self) -> None:
        """I31: the same at the end of the job."""
        odd = [one.name for one in self._world.living if is_wrong(one.content) and one.phase == "done"]
        assert not odd or not self._world.shape.spares.live, (
            f"I31: {odd} finished with another state than the others"
        )
