"""States that one rank gives to others: whose memory or checkpoint a plan goes to, and whether all ranks have taken the same."""

from __future__ import annotations

from collections.abc import Mapping

from recovery.core import messages as m
from recovery.core.ids import Rank
from recovery.core.policy import live, rollback
from recovery.core.records import GenerationRecord, JobState, LiveSourceRecord, Record
from recovery.core.scheduler.effects import Send
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def memories(state: SchedulerState) -> dict[Rank, m.LiveState]:
    """What the ranks have said of their memories, as far as it is of this run. While a job forms nobody is known to have trained in it."""
    if state.job.state is not JobState.INTERRUPTED:
        return {}
    return {
        node.record.rank: node.ready.live
        for node in state.workers
        if node.ready is not None and node.ready.live is not None and node.record.rank is not None
        if node.ready.live.run == state.job.run and node.ready.live.structure
    }


def why_not(state: SchedulerState) -> list[str]:
    """Why the plan goes to no rank's memory, where that was asked for; empty: it was not, or nobody has trained."""
    if not state.rules.live_rollback or state.job.state is not JobState.INTERRUPTED:
        return []
    states = memories(state)
    missing = {
        step: live.nobody_has(states, step, state.rules.world_size)
        for step in {live_state.step for live_state in states.values()}
    }
    reasons = {
        node.record.rank: _reason(state, node.ready, missing)
        for node in state.workers
        if node.record.rank is not None and node.ready is not None
    }
    return [f"{live.NOT_LIVE}{live.why_not(reasons)}"]


def _reason(state: SchedulerState, ready: m.Ready, missing: Mapping[int, Rank | None]) -> str:
    if ready.live is None:
        return ready.not_live
    if ready.live.run != state.job.run:
        return f"its state of step {ready.live.step} is of run {ready.live.run}"
    if ready.live.step in state.live.refused:
        return f"the state of step {ready.live.step} could not be taken before"
    if not rollback.in_lineage((ready.live,), state.generations):
        return f"its state of step {ready.live.step} was rolled back"
    without = missing[ready.live.step]
    if without is not None:
        return f"of step {ready.live.step} it has its own part, and nobody has that of rank {without}"
    return f"its state of step {ready.live.step} is not newer than the checkpoint"


def begin(
    state: SchedulerState, plan: GenerationRecord, sources: tuple[live.LiveSource, ...]
) -> list[Record]:
    """A plan is made: note in which ranks its state is; the rows that say so."""
    state.live.begin(sources, plan.step)
    return [
        LiveSourceRecord(
            run=plan.run,
            generation=plan.generation,
            rank=source.rank,
            structure=source.structure,
            replicas=",".join(map(str, source.replicas)),
        )
        for source in sources
    ]


def of_row(row: LiveSourceRecord) -> live.LiveSource:
    """What a row says."""
    replicas = tuple(Rank(int(rank)) for rank in row.replicas.split(",") if rank)
    return live.LiveSource(row.rank, row.structure, replicas)


def note_loaded(state: SchedulerState, node: Node, loaded: m.StateLoaded) -> str:
    """A rank has taken the state of the plan. Gives why the generation cannot go on, since a rank before it has taken another one; empty: it can."""
    rank = node.record.rank
    source = state.live.source_of(rank) if rank is not None else None
    if rank is None or source is None:
        return ""
    state.live.spoken.add(rank)
    first, content = state.live.firsts.setdefault(source.rank, (rank, loaded.content))
    if content == loaded.content:
        return ""
    state.live.refused.add(loaded.step)
    return (
        f"rank {first} and rank {rank} hold different states of step {loaded.step} "
        f"after they took it from rank {source.rank}"
    )


def agreed(state: SchedulerState, node: Node, *, was_known: bool) -> list[Send]:
    """Let the ranks begin if all have taken the same; a rank that says it again, since it has not heard the answer, hears it alone."""
    if not state.live.sources or len(state.live.spoken) < state.rules.world_size:
        return []
    agreed = m.StateAgreed(generation=state.job.generation)
    to = [node] if was_known else state.workers
    return [Send(worker.connection, agreed) for worker in to if worker.connection is not None]
