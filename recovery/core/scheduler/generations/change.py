"""How a generation ends, since it is interrupted or all its ranks are done, and how the next one begins.

FORMING -> RUNNING(g) -> INTERRUPTED(g) -> [all ranks ready] -> plan -> RUNNING(g+1) ... -> FINISHED | FAILED
"""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Answer, Exit, Persist
from recovery.core.ids import Generation, NodeId, Rank
from recovery.core.policy import ranks, rebuild, rollback
from recovery.core.policy.next_plan import CrashLoop, End, Facts, Plan, next_plan
from recovery.core.records import CheckpointState, EventKind, GenerationRecord, JobState, Record, to_record
from recovery.core.scheduler import barrier_ends, job_end, training_end
from recovery.core.scheduler.checkpoints import copying, replicas
from recovery.core.scheduler.copy_state import Fetching
from recovery.core.scheduler.effects import PauseTimer, SchedulerEffect, Send, SetTimer
from recovery.core.scheduler.generations import live
from recovery.core.scheduler.generations.plan_messages import missing_files, rollback_for, why_there
from recovery.core.scheduler.job_states import JobFact
from recovery.core.scheduler.membership import death_proof, lost_scheduler_store
from recovery.core.scheduler.membership.quorum import wait_for_all_ranks
from recovery.core.scheduler.pending_facts import Failure
from recovery.core.scheduler.state import SchedulerState


def interrupt(state: SchedulerState, failure: Failure, now_ms: int) -> list[SchedulerEffect]:
    """End the generation. Survivors are sent the interrupt before anything is written: it promises them nothing.

    It is sent again behind the write: the first one may have overtaken the plan of this very generation.
    """
    if state.job.state is JobState.INTERRUPTED:
        return [*_another_failure(state, failure, now_ms), *failure.then]
    if state.job.state is not JobState.RUNNING:
        return [*failure.then]
    if not state.rules.recovery_enabled:
        return [*job_end.end(state, m.JobOutcome.JOB_FAILED, failure.reason, now_ms), *failure.then]
    stops = barrier_ends.why_job_stops(state, now_ms)
    reason, cause, about = (
        (stops, Cause.OTHER, "") if stops else (failure.reason, failure.cause, failure.about)
    )
    answers: list[Answer] = []
    interrupted = m.Interrupt(generation=state.job.generation, reason=reason[:1024])
    for node in state.workers:
        node.ready, node.done = None, False
        if node.connection is not None and not job_end.has_left(node):
            answers.append(Answer(node.connection, interrupted))
    effects: list[SchedulerEffect] = [Send(answer.connection, interrupted) for answer in answers]
    state.crash_loop, state.rendezvous = failure.crash_loop, None
    ended = msgspec.structs.replace(
        state.generations[-1], ended=reason, ended_step=max(node.record.step for node in state.workers)
    )
    state.generations[-1] = ended
    event = state.event(
        EventKind.GENERATION_INTERRUPTED,
        generation=state.job.generation,
        step=ended.ended_step,
        reason=reason,
        details="" if stops else failure.details,
    )
    job = state.change_job(JobFact.GENERATION_INTERRUPTED, reason=reason, cause=cause, about=about)
    effects.append(Persist((job, ended, event), tuple(answers)))
    return [*effects, *wait_for_all_ranks(state, now_ms), *failure.then]


def _another_failure(state: SchedulerState, failure: Failure, now_ms: int) -> list[SchedulerEffect]:
    """One more failure of an interrupted generation: the wait begins again, the first failure whose cause is known stays the reason."""
    effects = wait_for_all_ranks(state, now_ms)
    if state.crash_loop is not None and failure.cause is not Cause.PROGRAM_RESTARTED:
        state.crash_loop = failure.crash_loop
        effects.append(Persist(state.name_cause(failure.reason, failure.cause, failure.about)))
    return effects


def end_training(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """The job has trained to the end: every rank has."""
    step = max(node.record.step for node in state.workers)
    why = training_end.why_training_has_ended(state, step)
    reason = f"all {state.rules.world_size} ranks are done at step {step}{why}"
    return job_end.end(state, m.JobOutcome.FINISHED, reason, now_ms)


def begin_generation(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Begin the next generation: every rank is live and ready."""
    loop = state.crash_loop
    if loop is not None and now_ms < loop.next_ms:
        return _pause(state, loop)
    records: list[Record] = []
    watches: list[SchedulerEffect] = []
    if state.job.state is JobState.FORMING:
        asking = lost_scheduler_store.still_asking(state, now_ms)
        if asking is not None:
            return asking
        taken_up = lost_scheduler_store.take_up(state)
        if isinstance(taken_up, Exit):
            return [taken_up]
        records = [*taken_up, *_assign_ranks(state)]
        watches = death_proof.watch_again(state) if taken_up else []
    facts = _facts(state, now_ms)
    if told := replicas.tell_held(state, facts):
        records += told
        facts = _facts(state, now_ms)
    decided = next_plan(facts)
    if isinstance(decided, End):
        return _end(state, decided, records, now_ms)
    state.disk_commits.planned(now_ms, is_first=not state.generations)
    return [_begin(state, decided, records), *watches]


def _pause(state: SchedulerState, loop: CrashLoop) -> list[SchedulerEffect]:
    """Every rank is ready, and the next generation begins later."""
    if loop.waits:
        return []
    state.crash_loop = loop._replace(waits=True)
    return [SetTimer(PauseTimer(), loop.next_ms)]


def _facts(state: SchedulerState, now_ms: int) -> Facts:
    """What the decision is made of."""
    return msgspec.structs.replace(
        state.checkpoints.facts(
            allow_restart_from_zero=state.rules.allow_restart_from_zero, copied=copying.copies_for_plan(state)
        ),
        live_rollback=state.rules.live_rollback and not _distrusts_memory(state),
        memories=live.memories(state),
        generations=state.generations,
        refused=frozenset(state.live.refused),
        crash_loop=state.crash_loop,
        because=state.job.reason,
        now_ms=now_ms,
    )


def _distrusts_memory(state: SchedulerState) -> bool:
    """Did the ranks differ where they must not, so that a memory may hold what is wrong?"""
    return state.replicas.distrusts_memory or state.job.cause is Cause.REPLICAS_DIFFER


def _end(state: SchedulerState, end: End, records: list[Record], now_ms: int) -> list[SchedulerEffect]:
    """The job cannot go on. One write: what the workers have reported of a lost store's job is not there without its end."""
    why = ""
    if end.outcome is m.JobOutcome.NO_COMMON_CHECKPOINT:
        why = rollback.why_given_up(state.checkpoints.given_up(0))
        records += missing_files(state, 0)
    reason = f"{end.reason}. {end.advice}{f' Why: {why}.' if why else ''}"
    return job_end.end(state, end.outcome, reason, now_ms, *records)


def _assign_ranks(state: SchedulerState) -> list[Record]:
    records: list[Record] = []
    named: list[str] = []
    for role in (m.Role.WORKER, m.Role.SERVER):
        holders = state.slot_holders(role)
        hosts = {NodeId(node.slot): node.record.host for node in holders}
        kept = {NodeId(node.slot): node.record.rank for node in holders if node.record.rank is not None}
        assigned = ranks.keep(ranks.assign(hosts), kept)
        for node in holders:
            rank = assigned[NodeId(node.slot)]
            node.record = msgspec.structs.replace(node.record, rank=rank)
            records += [node.record, state.incarnation_record(node)]
            named.append(f"{node.record.node_id}={rank}")
            if role is m.Role.WORKER and node.ready is not None:
                state.checkpoints.replace(rank, state.held_by(node.ready, rank), node.ready.passed_over)
    details = " ".join(sorted(named, key=ranks.natural_key))
    return [*records, state.event(EventKind.RANKS_ASSIGNED, details=details)]


def _begin(state: SchedulerState, plan: Plan, records: list[Record]) -> SchedulerEffect:
    """Write the plan, then send it to every rank."""
    step, at = plan.step, plan.at
    records += [
        *missing_files(state, step),
        *_fetch(state, plan.files),
        *training_end.end_training_no_earlier(state, step),
    ]
    reason = why_there(state, plan)
    generation = GenerationRecord(
        run=state.job.run,
        generation=_next_number(state),
        step=step,
        epoch=at.epoch if at is not None else 0,
        step_in_epoch=at.step_in_epoch if at is not None else 0,
        because=state.job.reason,
    )
    records += live.begin(state, generation, plan.sources)
    event = state.event(
        EventKind.PLAN_MADE, generation=generation.generation, step=generation.step, reason=reason
    )
    state.generations.append(generation)
    fetched = {rank: fetch.held for rank, fetch in state.copying.fetching.items()}
    records += state.checkpoints.roll_back(generation.step, fetched, is_stored=not plan.sources)
    copying.begin_generation(state, generation.step)
    state.uploading.go_back(generation.step, state.checkpoints.durable_step)
    state.rendezvous, state.deadline_ms = None, None
    state.vacancies.reported_declines.clear()
    state.replicas.distrusts_memory = False
    job = state.change_job(JobFact.PLAN_MADE, generation=generation.generation)
    answers: list[Answer] = []
    for node in state.workers:
        node.ready, node.done = None, False
        node.record = msgspec.structs.replace(
            node.record, generation=generation.generation, step=generation.step
        )
        records.append(node.record)
        node.sent_generation = generation.generation
        assert node.connection is not None, "a node that is ready is connected"
        answers.append(Answer(node.connection, rollback_for(state, node)))
    records += [_row_of(state, Rank(rank), held) for rank, held in enumerate(plan.files)]
    if 0 < state.checkpoints.durable_step < step:
        # From here on every rank keeps its file of it.
        records += state.checkpoints.committed_records(state.checkpoints.durable_step)
    return Persist((*records, job, generation, event), tuple(answers))


def _next_number(state: SchedulerState) -> Generation:
    # Workers may know more generations than a store that was lost; so may a standby that held a rank before.
    of_nodes = max(node.record.generation for node in state.nodes.values())
    newest = max(state.job.generation, state.store_rebuild.reported_generation, of_nodes)
    if state.generations and state.generations[-1].cause is Cause.STORE_REBUILT:
        return rebuild.first_number_after(newest, state.store_rebuild.thousands_skipped)
    return Generation(newest + 1)


def _fetch(state: SchedulerState, files: tuple[m.HeldCheckpoint, ...]) -> list[Record]:
    """Note which ranks do not have what the plan goes back to, and which nodes give it to them. What lies among a node's own copies is its own."""
    state.copying.fetching.clear()
    records: list[Record] = []
    nodes = {node.record.rank: node for node in state.workers}
    for rank, held in ((Rank(index), held) for index, held in enumerate(files)):
        if state.checkpoints.file_of(rank, held.step) is not None:
            continue
        if nodes[rank].record.node_id in state.checkpoints.copies.holders(rank, held.step):
            records.append(state.checkpoints.bring_back(rank, held))
        else:
            state.copying.fetching[rank] = Fetching(held, copying.holders_here(state, rank, held.step))
    return records


def _row_of(state: SchedulerState, rank: Rank, held: m.HeldCheckpoint) -> Record:
    """What the plan goes back to. A rank that has to fetch it holds it when it says so."""
    if rank in state.copying.fetching:
        return to_record(rank, held, CheckpointState.FETCHING, "its own node does not have it")
    return to_record(rank, held, CheckpointState.COMMITTED)
