"""The plan of a generation: as each rank is sent it, at once or when it has connected, and as the event log explains it."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.ids import Generation, Rank
from recovery.core.policy import copies, ranks, rollback
from recovery.core.policy.next_plan import Plan
from recovery.core.records import EventKind, Record
from recovery.core.scheduler import training_end
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.generations import live
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.membership import takeover
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pending_facts import Arrival
from recovery.core.scheduler.state import SchedulerState


def rollback_for(state: SchedulerState, node: Node) -> m.Rollback:
    """The current generation's plan, as this node is sent it."""
    generation = state.generations[-1]
    rank = node.record.rank
    assert rank is not None, "a plan is for ranks"
    local_rank, local_world_size = _local_ranks(state)[rank]
    of_memory = state.live.source_of(rank)
    loads_own = of_memory is None or (of_memory.is_checkpoint and of_memory.rank == rank)
    file = state.checkpoints.file_of(rank, generation.step) if loads_own else None
    fetching = state.copying.fetching.get(rank)
    end = training_end.agreed_training_end(state)
    return m.Rollback(
        generation=generation.generation,
        run=generation.run,
        step=generation.step,
        epoch=generation.epoch,
        step_in_epoch=generation.step_in_epoch,
        rank=rank,
        world_size=state.rules.world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        path=file.path if file else "",
        digest=file.digest if file else fetching.held.digest if fetching else "",
        committed_step=state.checkpoints.committed_step,
        because=generation.because[:1024],
        job=state.job.job,
        incarnation=node.record.incarnation,
        sources=fetching.sources if fetching else (),
        file_bytes=fetching.held.file_bytes if fetching else 0,
        written=fetching.held.generation if fetching else Generation(0),
        durable_step=state.checkpoints.durable_unless_committed,
        since_disk_commit_ms=state.disk_commits.since_ms,
        live_rank=of_memory.rank if of_memory is not None else None,
        live_structure=of_memory.structure if of_memory is not None else "",
        live_replicas=of_memory.replicas if of_memory is not None else (),
        ends_at=end.step if end is not None else 0,
        ends_because=end.reason if end is not None else "",
    )


def _local_ranks(state: SchedulerState) -> dict[Rank, tuple[int, int]]:
    """Each rank's (local rank, local world size), found once for each generation."""
    generation = (state.job.run, state.job.generation)
    if state.local_ranks is None or state.local_ranks[0] != generation:
        hosts = {
            worker.record.rank: worker.record.host
            for worker in state.workers
            if worker.record.rank is not None
        }
        state.local_ranks = (generation, ranks.local_ranks(hosts))
    return state.local_ranks[1]


def why_there(state: SchedulerState, plan: Plan) -> str:
    """Why the plan is where it is: also which newer committed steps it gives up, and whose files are the reason."""
    why = rollback.why_given_up(state.checkpoints.given_up(plan.step))
    ends = training_end.why_training_will_end(state)
    loop = state.crash_loop
    repeated = loop.sentence if loop is not None and loop.times > 1 else ""
    if plan.sources:
        return "; ".join(filter(None, [plan.reason, repeated, why, ends]))
    reasons = [plan.reason, repeated, *live.why_not(state)]
    reasons += copies.who_fetches(
        [
            (rank, ", ".join(source.node_id for source in fetch.sources))
            for rank, fetch in state.copying.fetching.items()
        ]
    )
    if why:
        reasons.append(why)
    count = sum(
        len(node.ready.passed_over) + node.ready.passed_over_more
        for node in state.workers
        if node.ready is not None
    )
    if count and not why:
        reasons.append(f"files that were passed over: {count}")
    return "; ".join(filter(None, [*reasons, ends]))


def missing_files(state: SchedulerState, target: int) -> list[Record]:
    """An event for every file of a newer committed step that nobody found; what was found and is bad has its own already."""
    nodes = {node.record.rank: node for node in state.workers}
    missing = [
        (step, rank, file.path)
        for step, unusable in state.checkpoints.given_up(target).items()
        for rank, file in unusable.items()
        if file.is_missing
    ]
    return [
        state.node_event(
            EventKind.CHECKPOINT_PASSED_OVER,
            nodes[rank],
            step=step,
            reason="it was committed and is missing",
            details=path,
        )
        for step, rank, path in missing[: m.SKIPPED_MAX]
    ]


def catch_up(state: SchedulerState, arrival: Arrival, now_ms: int) -> list[SchedulerEffect]:
    """Bring a node that (re)connected to where the job stands. Behind the write that admits it, so in order."""
    node, its_generation = arrival.node, arrival.register.generation
    connection = node.connection
    assert connection is not None, "it just registered"
    if state.job_ended or node.record.role is m.Role.SERVER or node.is_standby:
        return []
    effects: list[SchedulerEffect] = []
    if node.took_over and node.record.rank is not None and not its_generation:
        # A fresh process in the place of another name: its own directories may not hold the rank's files.
        effects += takeover.ask_holder(state, node, now_ms)
    if state.job.state in WAITING:
        over = Generation(max(state.job.generation, its_generation))
        interrupt = m.Interrupt(generation=over, reason=state.job.reason[:1024])
        return [*effects, *([Persist((), (Answer(connection, interrupt),))] if its_generation else [])]
    answers: list[Answer] = []
    if its_generation != state.job.generation:
        answers.append(Answer(connection, rollback_for(state, node)))
    node.sent_generation = state.job.generation
    if state.rendezvous is not None:
        answers.append(Answer(connection, state.rendezvous))
    end = training_end.agreed_training_end(state)
    if end is not None:
        answers.append(Answer(connection, training_end.training_ends(state, end)))
    return [*effects, Persist((), tuple(answers))]
