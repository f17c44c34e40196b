"""A scheduler that knows nothing meets workers that know a job: its store was lost.

Before a job's first plan nothing is lost by ending: the scheduler refuses by name, workers train on. With MS_REBUILD_STORE=1 it lets
everybody in, waits until all are here, and takes the job up again from what they report (`policy/rebuild.py`).
"""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core import messages as m
from recovery.core.checkpoints import CheckpointCoordinator
from recovery.core.effects import Exit, Log
from recovery.core.ids import Incarnation
from recovery.core.policy import rebuild
from recovery.core.policy.registration import Refuse
from recovery.core.records import EventKind, JobState, NodeState, Record, RunRecord
from recovery.core.scheduler.admission import job_fault_of, refuse
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import MessageReceived

_HERE = (NodeState.LIVE, NodeState.SUSPECT)

STORE_LOST = "STORE_LOST"
REBUILDING = "the scheduler's store was lost and is rebuilt from what the workers tell"
"""The reason of a job that waits for that. Stores hold it in these words, so that a restarted scheduler waits on."""


def knows_nothing(state: SchedulerState) -> bool:
    """Has this job never had a plan? Then it may have taken another job's place."""
    return state.job.state is JobState.FORMING and not state.job.generation and state.job.run == 1


def of_another_job(
    state: SchedulerState, received: MessageReceived, register: m.Register
) -> Union[list[SchedulerEffect], None]:
    """What follows when a process has trained a job which this scheduler does not know; None: it is let in like any."""
    if register.job in (state.job.job, *state.archived_jobs):
        return None
    if not register.job and not _was_planned_by_another(state, register):
        return None
    fault = job_fault_of(state, register)
    if fault is not None:
        return refuse(state, received.connection, register, fault)
    if not knows_nothing(state) or not state.rules.recovery_enabled:
        reason = (
            f'node "{register.node_id}" trains job {register.job}, this scheduler is of job {state.job.job}. '
            "End that process, or give it the address of its own scheduler."
        )
        return refuse(state, received.connection, register, Refuse("JOB_MISMATCH", reason))
    if state.rules.rebuild_store:
        return None
    job = register.job or "of another scheduler"
    what = f"node {register.node_id} trains job {job}, generation {register.generation}"
    return [_end(state, what)]


def _was_planned_by_another(state: SchedulerState, register: m.Register) -> bool:
    """An earlier release names no job, and a generation all the same: a scheduler that never planned gave it none."""
    knows_plan = register.generation > 0 and state.rules.recovery_enabled and knows_nothing(state)
    return knows_plan and not state.archived_jobs


def check_past(state: SchedulerState, node: Node, ready: m.Ready) -> list[SchedulerEffect]:
    """What follows from a worker's past in a job that is not this one."""
    past = ready.past
    if past is None or past.job in (state.job.job, *state.archived_jobs):
        return []
    what = (
        f"the own store of {node.record.node_id} is of job {past.job}: run {past.run}, rank {past.rank}, "
        f"generation {past.generation}, {len(past.held)} checkpoints, newest saved step {past.saved_step}"
    )
    if not knows_nothing(state):
        return [Log("other_job_passed_over", f"{what}; it counts nowhere in this job", warning=True)]
    return [] if state.rules.rebuild_store else [_end(state, what)]


def _end(state: SchedulerState, reason: str) -> Exit:
    """The scheduler's own end: nothing was planned, so nothing is lost by it, and workers train on."""
    state.store_is_lost = True
    return Exit(STORE_LOST, reason)


def still_asking(state: SchedulerState) -> bool:
    """Is there a standby that has not said yet what it knows? It may have held a rank until the end.

    One whose connection has just closed is waited for as well, until it is lost.
    """
    return _builds_again(state) and any(
        node.is_standby and node.record.state in _HERE and node.ready is None for node in state.nodes.values()
    )


def _builds_again(state: SchedulerState) -> bool:
    return state.rules.rebuild_store and knows_nothing(state)


def take_up(state: SchedulerState) -> Union[list[Record], Exit]:
    """All ranks are ready: become the job that the workers know, if they know one; what is to be written.

    Returns:
        Exit when the workers contradict each other: nobody can say which job this is.
    """
    if not _builds_again(state):
        return []
    ready = {
        node.record.node_id: node.ready
        for node in state.nodes.values()
        if node.record.state is NodeState.LIVE and node.ready is not None
    }
    pasts = {
        node_id: one.past
        for node_id, one in ready.items()
        if one.past is not None and one.past.job not in state.archived_jobs
    }
    if not pasts:
        if REBUILDING not in state.job.reason:
            return []
        return _end(
            state, f"has left traces here, and no worker that came knows anything of it ({state.job.reason})"
        )
    built = rebuild.rebuild(pasts)
    if isinstance(built, rebuild.Unclear):
        return _end(state, built.reason)
    if built.worker_count != state.rules.worker_count:
        return _end(
            state, f"had {built.worker_count} workers, here are {state.rules.worker_count} (MS_WORKER_NUM)"
        )
    _become(state, built)
    moved = _give_seats(state, built)
    for node in state.workers:
        past = pasts.get(node.record.node_id)
        if past is not None:
            node.record = msgspec.structs.replace(
                node.record,
                rank=built.ranks.get(node.record.node_id),
                incarnation=Incarnation(max(past.incarnation + 1, node.record.incarnation)),
            )
    event = state.event(
        EventKind.STORE_REBUILT,
        generation=built.generation,
        step=state.checkpoints.committed_step,
        reason="from what the workers reported",
        details=rebuild.report(built, pasts),
    )
    return [RunRecord(run=built.run), *moved, *built.generations, *built.checkpoints, event]


def _give_seats(state: SchedulerState, built: rebuild.Rebuilt) -> list[Record]:
    """Who held a rank until the end has a seat, and who was replaced has none: the processes came in any order. The rows of both."""
    without_rank = (node for node in state.workers if node.record.node_id not in built.ranks)
    records: list[Record] = []
    for node in [state.nodes[node_id] for node_id in built.ranks]:
        if node.is_standby:
            replaced = next(without_rank)
            seat, replaced.seat = replaced.seat, ""
            node.seat = seat
            records += [replaced.seat_record, node.seat_record]
    return records


def _become(state: SchedulerState, built: rebuild.Rebuilt) -> None:
    """From now on this scheduler is of the job that was found."""
    scheduler_incarnation = max(built.scheduler_incarnation + 1, state.job.scheduler_incarnation)
    state.job = msgspec.structs.replace(
        state.job,
        job=built.job,
        run=built.run,
        generation=built.generation,
        scheduler_incarnation=Incarnation(scheduler_incarnation),
        reason=REBUILDING,
    )
    state.generations = list(built.generations)
    state.checkpoints = CheckpointCoordinator(state.rules.world_size)
    state.checkpoints.load(built.checkpoints, state.generations)
