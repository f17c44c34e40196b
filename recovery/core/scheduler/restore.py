"""A scheduler starts: on nothing, or on what an earlier process of it stored."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.copy_records import CopyRecord
from recovery.core.effects import Log, Persist
from recovery.core.policy.live import LIVE_MODE
from recovery.core.records import (
    CheckpointRecord,
    EventKind,
    GenerationRecord,
    JobState,
    LiveSourceRecord,
    NodeRecord,
    NodeState,
    ProcessRecord,
    Record,
    RunRecord,
    SlotRecord,
    TrainingEndRecord,
)
from recovery.core.scheduler import job_end
from recovery.core.scheduler.checkpoints import copying
from recovery.core.scheduler.effects import GraceTimer, SchedulerEffect, SetTimer, WindowsTimer
from recovery.core.scheduler.generations import live
from recovery.core.scheduler.job_states import WAITING, JobFact
from recovery.core.scheduler.membership import death_proof, quorum
from recovery.core.scheduler.membership.liveness import WINDOW_NOTE_MS
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def restore(  # noqa: PLR0913 - one for each table
    state: SchedulerState,
    nodes: tuple[NodeRecord, ...],
    generations: tuple[GenerationRecord, ...],
    checkpoints: tuple[CheckpointRecord, ...],
    slots: tuple[SlotRecord, ...],
    *,
    processes: tuple[ProcessRecord, ...],
    copies: tuple[CopyRecord, ...],
    live_sources: tuple[LiveSourceRecord, ...],
    training_ends: tuple[TrainingEndRecord, ...],
) -> None:
    """Take over what an earlier process stored. Called before `start`. Copies that are missing of the newest committed step are ordered again."""
    run = state.job.run
    of_this_run = (record for record in generations if record.run == run)
    state.generations = sorted(of_this_run, key=lambda record: record.generation)
    of_run = [row for row in live_sources if row.run == run]
    saved = [record for record in checkpoints if record.run == run]
    state.checkpoints.load(saved, state.generations, {row.generation for row in of_run})
    state.replicas.restore(saved)
    state.live.restore(tuple(live.of_row(row) for row in of_run if row.generation == state.job.generation))
    of_others = {record.node_id: record.slot for record in slots}
    for record in nodes:
        state.put(Node(record, heard_ms=0, slot=of_others.get(record.node_id)))
    state.checkpoints.copies.load((record for record in copies if record.run == run), state.generations)
    copying.restore(state)
    state.uploading.go_back(0, state.checkpoints.durable_step)
    for process in processes:
        node = state.nodes.get(process.node_id)
        if node is not None and node.record.incarnation == process.incarnation:
            node.process = death_proof.identity_of(process)
    state.training_end = next((row for row in training_ends if row.run == run and row.step), None)


def start(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Begin to serve: each node that was alive gets one lease to come back, deadlines start again."""
    first = state.job.scheduler_incarnation == 1
    kind = EventKind.SCHEDULER_STARTED if first else EventKind.SCHEDULER_RESTARTED
    records: list[Record] = []
    said: list[Log] = []
    if state.job.state is JobState.FINISHED and all(job_end.has_left(node) for node in state.nodes.values()):
        if state.rules.continues_run:
            records += job_end.continue_run(state)
        else:
            said = job_end.next_run_note(state)
            records += job_end.begin_run(state)
    if state.job.state is JobState.FAILED:
        _try_again(state)
    if not state.job_ended:
        records.append(RunRecord(run=state.job.run))
    mode = LIVE_MODE if state.rules.live_rollback else ""
    records += [state.job, state.event(kind, incarnation=state.job.scheduler_incarnation, details=mode)]
    silent = [node.record for node in state.nodes.values() if _await_return(state, node, now_ms)]
    effects: list[SchedulerEffect] = [Persist((*records, *silent)), *said]
    effects += [
        SetTimer(GraceTimer(record.node_id), state.nodes[record.node_id].suspect_until_ms)
        for record in silent
    ]
    if any(node.window_ends_ms > now_ms for node in state.nodes.values()):
        effects.append(SetTimer(WindowsTimer(), now_ms + WINDOW_NOTE_MS))
    for node in state.nodes.values():
        if death_proof.may_still_matter(state, node, now_ms):
            effects += death_proof.watch(state, node)
    return effects + _go_on(state, now_ms)


def _try_again(state: SchedulerState) -> None:
    """A failed job was relaunched on purpose: the same run, one more try. A rebuilt one may not have all its ranks yet.

    Its reason is what failed first: with the whole end of each try it would hold all ends before.
    """
    ranks = {node.record.rank for node in state.nodes.values() if node.record.role is m.Role.WORKER}
    formed = bool(state.job.generation) and len(ranks - {None}) == state.rules.world_size
    fact = JobFact.RELAUNCHED if formed else JobFact.RELAUNCHED_UNFORMED
    state.change_job(fact, reason=job_end.first_failure(state.job.reason), cause=None)


def _await_return(state: SchedulerState, node: Node, now_ms: int) -> bool:
    """Apply what was left of the node's times, never more than a full window: the earlier process had another monotonic clock.

    Gives whether the node is suspect until it is heard again, which a reader of the store sees too.
    """
    node.heard_ms = now_ms
    node.window_ends_ms = now_ms + min(node.record.rejoin_left_ms, state.rules.rejoin_window_ms)
    if not node.record.state.is_here:
        return False
    if node.record.state is NodeState.LIVE:
        reason = node.record.reason or "not heard since the scheduler restarted"
        node.move(NodeState.SUSPECT, reason=reason, cause=node.record.cause)
    node.suspect_until_ms = now_ms + state.rules.lease_ms
    node.step_unknown = True
    return True


def _go_on(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    if state.job.state is JobState.FINISHED:
        return [job_end.end_within(state, state.rules.lease_ms, now_ms)]
    if state.job.state in WAITING:
        return quorum.wait_for_all_ranks(state, now_ms)
    gone = [node for node in state.workers if node.record.state in (NodeState.LOST, NodeState.LEFT)]
    if gone:
        # The earlier process ended between writing the loss and ending the generation.
        lost = gone[0].record
        state.facts.fail(f"{lost.node_id} lost: {lost.reason}", cause=Cause.NODE_LOST, about=lost.node_id)
        return []
    step = state.generations[-1].step
    if not state.live.sources and state.checkpoints.committed_step < step:
        # It ended between writing that a file of the plan is bad and ending the generation: a node that waits for that end has its answer.
        was_fetched = step in state.checkpoints.fetched_when_stopped
        why = "was being fetched when the scheduler ended" if was_fetched else "is not usable"
        state.facts.fail(f"the checkpoint of step {step} {why}")
    return []
