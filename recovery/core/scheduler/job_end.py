"""How the job of a run ends, how this scheduler ends after it, and how the next run begins."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.effects import Exit, Log, Persist
from recovery.core.ids import Generation, NodeId, RunId
from recovery.core.records import EventKind, JobState, NodeState, Record, RunRecord
from recovery.core.scheduler.effects import SchedulerEffect, SetTimer, ShutdownTimer
from recovery.core.scheduler.job_states import JobFact
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pauses import begins_again, was_paused
from recovery.core.scheduler.replica_watch import ReplicaWatch
from recovery.core.scheduler.state import RUN_FINISHED, SchedulerState

FIRST_FAILURE = "; first failure: "
"""Behind it, at the end of a reason, stands what failed first. Stores hold it in these words."""
_REASON_CHARS_MAX = 1_024
SHUTDOWN_MS = 2_000
"""How long a scheduler whose job has ended waits for its nodes to disconnect. A lost answer is asked for again within 50 ms."""


def end(
    state: SchedulerState, outcome: m.JobOutcome, reason: str, now_ms: int, *before: Record
) -> list[SchedulerEffect]:
    """The job is over: written first, then sent to everyone connected. A node has left when it disconnects after that."""
    state.outcome = outcome
    finished = outcome is m.JobOutcome.FINISHED
    event = state.event(EventKind.JOB_FINISHED if finished else EventKind.JOB_FAILED, reason=reason)
    job = state.change_job(JobFact.ALL_RANKS_DONE if finished else JobFact.FAILED, reason=reason, cause=None)
    run = RunRecord(run=job.run, outcome=outcome.value, reason=reason)
    answers = state.to_all(job_ended(state))
    return [Persist((*before, job, run, event), answers), end_within(state, SHUTDOWN_MS, now_ms)]


def end_within(state: SchedulerState, wait_ms: int, now_ms: int) -> SetTimer:
    """How long nodes have to come and hear the end."""
    state.ends_ms = now_ms + wait_ms
    return SetTimer(ShutdownTimer(), state.ends_ms)


def job_ended(state: SchedulerState) -> m.JobEnded:
    """What a node of an ended job is sent."""
    return m.JobEnded(outcome=state.outcome, reason=_shortened(state.job.reason))


def first_failure(reason: str) -> str:
    """What failed first, of the reason for which a job has ended: a job that is tried again goes on to name that, and not the ends since."""
    return reason.rpartition(FIRST_FAILURE)[2]


def _shortened(reason: str) -> str:
    """Of a long one the middle is left out: how the job ended and what failed first stay."""
    if len(reason) <= _REASON_CHARS_MAX:
        return reason
    marked = reason[reason.rfind(FIRST_FAILURE) :] if FIRST_FAILURE in reason else ""
    tail = f" ...{marked}"[: _REASON_CHARS_MAX // 2]
    return reason[: _REASON_CHARS_MAX - len(tail)] + tail


def has_left(node: Node) -> bool:
    """Did it go on purpose?"""
    return node.record.state is NodeState.LEFT


def leave(state: SchedulerState, nodes: Iterable[Node]) -> list[Record]:
    """These have nothing more to do in a finished run: their ids are free. A failed one keeps them for its next try."""
    if state.job.state is not JobState.FINISHED:
        return []
    return [
        node.move(NodeState.LEFT, reason=RUN_FINISHED, cause=Cause.RUN_FINISHED)
        for node in nodes
        if not has_left(node)
    ]


def on_disconnected(state: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    """A node leaves an ended job, or was cut off before it heard so and asks again within the reconnect grace.

    Without recovery a failed job ends everywhere within a second, and half of that went by until the loss was certain: the
    scheduler then waits for nobody. A node that was cut off at that very moment finds no scheduler any more and fails all the same.
    """
    effects: list[SchedulerEffect] = [Persist(tuple(leave(state, [node])))]
    if not any(
        other.connection is not None or other.record.state is NodeState.SUSPECT
        for other in state.nodes.values()
    ):
        at_once = state.job.state is JobState.FAILED and not state.rules.recovery_enabled
        wait_ms = 0 if at_once else state.rules.reconnect_grace_ms
        effects.append(end_within(state, wait_ms, now_ms))
    return effects


def on_shutdown_due(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """A node that has not come to hear the end by now does not come back: its id is free for the next run."""
    assert state.job_ended, "it is set by the end, and no run begins in the process of an ended scheduler"
    if was_paused(state.ends_ms, now_ms):
        again = begins_again("the time to hear how the job ended", state.ends_ms, now_ms)
        return [again, end_within(state, SHUTDOWN_MS, now_ms)]
    records = tuple(leave(state, state.nodes.values()))
    return [Persist(records, (Exit(state.outcome.code, state.job.reason),))]


def on_stop_asked(state: SchedulerState, signal: str) -> list[SchedulerEffect]:
    """This scheduler is asked to end before its job: the event log says that this was no crash."""
    return [] if state.job_ended else [Persist((state.event(EventKind.SCHEDULER_STOPPED, reason=signal),))]


def next_run_note(state: SchedulerState) -> list[Log]:
    """Say that training begins at step 0 where checkpoints of a finished run are there. Asked before `begin_run`."""
    step, number = state.checkpoints.committed_step, state.job.run
    text = (
        f"run {number} of this job has finished, and its newest common checkpoint is of step {step}: this start begins run {number + 1} at step 0. "
        "MS_CONTINUE=1 goes on from that step"
    )
    return [Log("run_begun", text, warning=True)] if step else []


def continue_run(state: SchedulerState) -> list[Record]:
    """A finished run goes on as one that was stopped, under the node ids that its ranks began with. What a script has said of its end is taken back.

    Called as `begin_run`.
    """
    reason = state.job.reason
    event = state.event(EventKind.RUN_CONTINUED, step=state.checkpoints.committed_step, reason=reason)
    records: list[Record] = [state.change_job(JobFact.RUN_CONTINUED, reason=f"it goes on: {reason}"), event]
    if state.training_end is not None:
        records.append(msgspec.structs.replace(state.training_end, step=0))
        state.training_end = None
    moved = [
        (state.nodes[NodeId(node.slot)], node.record.rank, node)
        for node in state.nodes.values()
        if node.slot != node.record.node_id and NodeId(node.slot) in state.nodes
    ]
    for _, _, node in moved:
        node.slot, node.record = "", msgspec.structs.replace(node.record, rank=None)
    for first, rank, _ in moved:
        first.slot, first.record = first.record.node_id, msgspec.structs.replace(first.record, rank=rank)
    for node in {id(node): node for first, _, taker in moved for node in (first, taker)}.values():
        records += [node.record, node.slot_record]
    return records


def begin_run(state: SchedulerState) -> list[Record]:
    """A finished job's path starts its next run: same node ids, no ranks, no checkpoints, new generations.

    Called when a scheduler starts and every node of the run before has left.
    """
    job = state.change_job(JobFact.RUN_BEGUN, generation=Generation(0), run=RunId(state.job.run + 1))
    state.checkpoints, state.training_end = CheckpointIndex(state.rules.world_size), None
    state.generations, state.replicas = [], ReplicaWatch()
    records: list[Record] = [job, RunRecord(run=job.run)]
    for node in state.nodes.values():
        if node.slot and node.slot != node.record.node_id:
            # A new run gives its slots again, and nobody need come back under the id of the node that took a rank over.
            node.slot = ""
            records.append(node.slot_record)
        node.record = msgspec.structs.replace(node.record, rank=None, step=0, generation=Generation(0))
        records.append(node.record)
    return records
