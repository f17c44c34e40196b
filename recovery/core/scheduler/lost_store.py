"""A scheduler that knows nothing meets workers that know a job: its store was lost. Functions over the table.

Before a job's first plan nothing is lost by ending: the scheduler refuses by name, workers train on. With MS_REBUILD_STORE=1 it lets
everybody in, waits until all are here, and takes the job up again from what they tell (`policy/rebuild.py`).
"""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core import messages as m
from recovery.core.checkpoints import CheckpointCoordinator
from recovery.core.effects import Exit, Say
from recovery.core.ids import Incarnation
from recovery.core.policy import rebuild
from recovery.core.policy.registration import Refuse
from recovery.core.records import EventKind, JobState, Record, RunRecord
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.registration import job_fault_of, refuse
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import MessageReceived

STORE_LOST = "STORE_LOST"
REBUILDING = "the scheduler's store was lost and is rebuilt from what the workers tell"
"""The reason of a job that waits for that. It stands in the store, so that the next life waits on."""


def knows_nothing(table: SchedulerState) -> bool:
    """Has this job never had a plan? Then it may be another's place that it took."""
    return table.job.state is JobState.FORMING and not table.job.generation and table.job.run == 1


def of_another_job(
    table: SchedulerState, received: MessageReceived, register: m.Register
) -> Union[list[SchedulerEffect], None]:
    """What a process hears that has trained a job which this scheduler does not know; None: it is let in like any."""
    if register.job in (table.job.job, *table.laid_aside):
        return None
    if not register.job and not _was_planned_by_another(table, register):
        return None
    fault = job_fault_of(table, register)
    if fault is not None:
        return refuse(table, received.connection, register, fault)
    if not knows_nothing(table) or not table.rules.recovery_enabled:
        reason = (
            f'node "{register.node_id}" trains job {register.job}, this scheduler is of job {table.job.job}. '
            "End that process, or give it the address of its own scheduler."
        )
        return refuse(table, received.connection, register, Refuse("JOB_MISMATCH", reason))
    if table.rules.rebuild_store:
        return None
    job = register.job or "of another scheduler"
    what = f"node {register.node_id} trains job {job}, generation {register.generation}"
    return [lost(table, what)]


def _was_planned_by_another(table: SchedulerState, register: m.Register) -> bool:
    """The release before told no job, and a generation all the same: a scheduler that never planned gave it none."""
    told = register.generation > 0 and table.rules.recovery_enabled and knows_nothing(table)
    return told and not table.laid_aside


def hear(table: SchedulerState, node: Node, ready: m.Ready) -> list[SchedulerEffect]:
    """What follows from a worker's past in a job that is not this one."""
    past = ready.past
    if past is None or past.job in (table.job.job, *table.laid_aside):
        return []
    what = (
        f"the own store of {node.record.node_id} tells of job {past.job}: run {past.run}, rank {past.rank}, "
        f"generation {past.generation}, {len(past.held)} checkpoints, newest saved step {past.saved_step}"
    )
    if not knows_nothing(table):
        return [Say("other_job_passed_over", f"{what}; it counts nowhere in this job", warning=True)]
    return [] if table.rules.rebuild_store else [lost(table, what)]


def lost(table: SchedulerState, reason: str) -> Exit:
    """The scheduler's own end: nothing was planned, so nothing is lost by it, and workers train on."""
    table.is_over = True
    return Exit(STORE_LOST, reason)


def take_up(table: SchedulerState) -> Union[list[Record], rebuild.Unclear]:
    """The house is full: become the job that the workers know, if they know one; what is to be written."""
    if not (table.rules.rebuild_store and knows_nothing(table)):
        return []
    ready = {node.record.node_id: node.ready for node in table.workers if node.ready is not None}
    pasts = {
        node_id: one.past
        for node_id, one in ready.items()
        if one.past is not None and one.past.job not in table.laid_aside
    }
    if not pasts:
        nobody = f"is told of here, and no worker that came knows anything of it ({table.job.reason})"
        return rebuild.Unclear(nobody) if REBUILDING in table.job.reason else []
    built = rebuild.rebuild(pasts)
    if isinstance(built, rebuild.Unclear):
        return built
    if built.worker_count != table.rules.worker_count:
        return rebuild.Unclear(
            f"had {built.worker_count} workers, here are {table.rules.worker_count} (MS_WORKER_NUM)"
        )
    table.job = msgspec.structs.replace(
        table.job,
        job=built.job,
        run=built.run,
        generation=built.generation,
        scheduler_incarnation=Incarnation(
            max(built.scheduler_incarnation + 1, table.job.scheduler_incarnation)
        ),
        reason=REBUILDING,
    )
    table.generations = list(built.generations)
    table.coordinator = CheckpointCoordinator(table.rules.world_size)
    table.coordinator.load(built.checkpoints, table.generations)
    for node in table.workers:
        past = pasts.get(node.record.node_id)
        if past is not None:
            node.record = msgspec.structs.replace(
                node.record,
                rank=built.ranks.get(node.record.node_id),
                incarnation=Incarnation(max(past.incarnation + 1, node.record.incarnation)),
            )
    event = table.event(
        EventKind.STORE_REBUILT,
        generation=built.generation,
        step=table.coordinator.committed_step,
        reason="from what the workers told",
        details=rebuild.told(built, pasts),
    )
    return [RunRecord(run=built.run), *built.generations, *built.checkpoints, event]
