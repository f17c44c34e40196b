"""A scheduler that knows nothing meets workers that know a job: its store was lost.

Before a job's first plan nothing is lost by ending: the scheduler refuses by name, workers train on. With MS_REBUILD_STORE=1 it lets
everybody in, waits until all are here, and takes the job up again from what they report (`policy/rebuild.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import msgspec

from recovery.core import messages as m
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.effects import Exit, Log
from recovery.core.ids import Generation, Incarnation, NodeId, Rank
from recovery.core.policy import rebuild, rollback
from recovery.core.policy.ranks import natural_key, slot_of
from recovery.core.policy.registration import Refuse
from recovery.core.records import EventKind, NodeState, Record, RunRecord
from recovery.core.scheduler.effects import RebuildTimer, SchedulerEffect, SetTimer
from recovery.core.scheduler.membership import death_proof, slot_choice
from recovery.core.scheduler.membership.admission import job_fault_of, refuse
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import MessageReceived

STORE_LOST = "STORE_LOST"
REBUILDING = "the scheduler's store was lost and is rebuilt from what the workers tell"
"""The reason of a job that waits for that. Stores hold it in these words, so that a restarted scheduler waits on."""


def of_another_job(
    state: SchedulerState, received: MessageReceived, register: m.Register, now_ms: int
) -> Union[list[SchedulerEffect], None]:
    """What follows when a process has trained a job which this scheduler does not know; None: it is let in like any."""
    if register.job in (state.job.job, *state.archived_jobs):
        return None
    if not register.job and not _was_planned_by_another(state, register):
        return None
    fault = job_fault_of(state, register)
    if fault is not None:
        return refuse(state, received, register, fault, now_ms)
    if not state.knows_nothing or not state.rules.recovery_enabled:
        reason = (
            f'node "{register.node_id}" trains job {register.job}, this scheduler is of job {state.job.job}. '
            "End that process, or give it the address of its own scheduler."
        )
        return refuse(state, received, register, Refuse("JOB_MISMATCH", reason), now_ms)
    if state.rules.rebuild_store:
        return None
    job = register.job or "of another scheduler"
    what = f"node {register.node_id} trains job {job}, generation {register.generation}"
    return [_end(state, what)]


def _was_planned_by_another(state: SchedulerState, register: m.Register) -> bool:
    """An earlier release names no job, and a generation all the same: a scheduler that never planned gave it none."""
    knows_plan = register.generation > 0 and state.rules.recovery_enabled and state.knows_nothing
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
    if not state.knows_nothing:
        return [Log("other_job_passed_over", f"{what}; it counts nowhere in this job", warning=True)]
    if not state.rules.rebuild_store:
        return [_end(state, what)]
    return []


def _end(state: SchedulerState, reason: str) -> Exit:
    """The scheduler's own end: nothing was planned, so nothing is lost by it, and workers train on."""
    state.store_rebuild.ends_scheduler = True
    return Exit(STORE_LOST, reason)


def give_slots_to_standbys(state: SchedulerState) -> list[Record]:
    """While a store is built again: a node that came when all slots were taken, or knows to have had a rank, takes a slot that is free.

    First those whose own place it is. Which of them has which rank is only decided when all ranks are here. Gives the rows.
    """
    slots, rows = state.slots[m.Role.WORKER], list[Record]()
    if not state.builds_again or slots.taken >= state.rules.worker_count or not slots.standbys:
        return rows
    may_take = [node for node in state.nodes.values() if _may_sit(node)]
    left = set(slots.holders) - set(slots.names)
    for node in sorted(
        may_take,
        key=lambda candidate: (_home_slot(candidate) not in left, natural_key(candidate.record.node_id)),
    ):
        name = _free_name(state, node)
        if name and slots.taken < state.rules.worker_count:
            rows += slot_choice.give_up_name(state, name, node.record.node_id, node.record.role)
            node.slot = name
            rows.append(node.slot_record)
    return rows


def _may_sit(node: Node) -> bool:
    had_rank = node.ready is not None and node.ready.past is not None
    return node.is_standby and node.record.state is NodeState.LIVE and (had_rank or not node.waits_by_choice)


def _home_slot(node: Node) -> str:
    return slot_of(node.record.node_id, node.replaces)


def _free_name(state: SchedulerState, node: Node) -> str:
    """By which name its slot may be called: where integers are the ranks, an integer; empty: by none, for now."""
    slots, count = state.slots[m.Role.WORKER], state.rules.worker_count
    own = node.record.node_id
    if node.waits_by_choice and count > 1 and not slots.taken:
        # Whether integers are the ranks is for the ids of the others to say.
        return ""
    taken = set(slots.names)
    names = [_home_slot(node), own, *map(str, range(count)), *state.nodes]
    fitting = (
        name for name in map(NodeId, names) if name not in taken and not slots.names.violation(name, count)
    )
    return next(fitting, "")


def still_asking(state: SchedulerState, now_ms: int) -> Union[list[SchedulerEffect], None]:
    """What follows while somebody may know more than is known; None: nobody is waited for.

    A standby that has not said yet what it knows may have held a rank until the end. Of a rank of which less is known than of the others,
    or nothing, the last holder is on its way, or dead: it has one lease to come. So has a node that trains, where none here does.
    """
    if not state.builds_again:
        return None
    if any(node.is_standby and _may_still_say(node) for node in state.nodes.values()):
        return []
    if state.store_rebuild.has_asked:
        return None
    pasts = _pasts(state)
    gone = _gone(state, pasts)
    built = rebuild.rebuild(pasts, gone) if pasts or gone else None
    if not isinstance(built, rebuild.Rebuilt):
        return None
    unsure = "; ".join(built.unsure_ranks) or _only_noted(state, built)
    if not unsure:
        return None
    if built.worker_count != state.rules.worker_count:
        # No matter which node comes, this is not the scheduler of that job.
        return None
    if state.store_rebuild.asks_until_ms is not None:
        return []
    state.store_rebuild.asks_until_ms = now_ms + state.rules.lease_ms
    text = f"{unsure}: a node that knows more has {state.rules.lease_ms / 1000:g} s to come (MS_NODE_TIMEOUT)"
    return [
        Log("store_rebuilding", text, warning=True),
        SetTimer(RebuildTimer(), state.store_rebuild.asks_until_ms),
    ]


def on_asked(state: SchedulerState, now_ms: int) -> None:
    """A node that knows more had its time to come."""
    until_ms = state.store_rebuild.asks_until_ms
    state.store_rebuild.has_asked = until_ms is not None and now_ms >= until_ms


def _only_noted(state: SchedulerState, built: rebuild.Rebuilt) -> str:
    """Why all that is known may be out of date: standbys may have taken the ranks over since, and train; empty: it is not."""
    here = [
        node for node in state.nodes.values() if node.record.role is m.Role.WORKER and node.ready is not None
    ]
    all_here = len(here) >= state.rules.worker_count + state.rules.standby_count
    if all_here or state.store_rebuild.reported_generation >= built.generation:
        return ""
    return (
        f"no node that came has trained in generation {built.generation}, the newest that anybody has noted"
    )


def _may_still_say(node: Node) -> bool:
    """Is it here and has not said what it knows, or may it be back in a moment?"""
    is_silent = node.record.state is NodeState.LIVE and node.ready is None
    return is_silent or node.record.state is NodeState.SUSPECT


def _pasts(state: SchedulerState) -> dict[NodeId, m.JobHistory]:
    """What all nodes that are here know."""
    return {
        node.record.node_id: node.ready.past
        for node in state.nodes.values()
        if node.record.state is NodeState.LIVE and node.ready is not None
        if node.ready.past is not None and node.ready.past.job not in state.archived_jobs
    }


def note_past(state: SchedulerState, node: Node, ready: m.Ready) -> list[Record]:
    """Somebody has said what it knows. That stays known when it is lost before all ranks are here.

    Gives its row: the newest number that it was given outlives the scheduler's process too.
    """
    state.store_rebuild.reported_generation = max(state.store_rebuild.reported_generation, ready.generation)
    past = ready.past
    if not state.builds_again or past is None or past.job in state.archived_jobs:
        return []
    state.store_rebuild.reported[node.record.node_id] = past
    if past.generation <= node.record.generation:
        return []
    node.record = msgspec.structs.replace(node.record, generation=Generation(past.generation))
    return [node.record]


def _gone(state: SchedulerState, pasts: Mapping[NodeId, m.JobHistory]) -> dict[NodeId, m.JobHistory]:
    return {node_id: past for node_id, past in state.store_rebuild.reported.items() if node_id not in pasts}


def take_up(state: SchedulerState) -> Union[list[Record], Exit]:
    """All ranks are ready: become the job that the workers know, if they know one; what is to be written.

    Exit when the workers contradict each other: nobody can say which job this is.
    """
    if not state.builds_again:
        return []
    state.store_rebuild.asks_until_ms, state.store_rebuild.has_asked = None, False
    pasts = _pasts(state)
    gone = _gone(state, pasts)
    if not pasts and not gone:
        if REBUILDING not in state.job.reason:
            return []
        return _end(
            state, f"has left traces here, and no worker that came knows anything of it ({state.job.reason})"
        )
    built = rebuild.rebuild(pasts, gone)
    state.store_rebuild.reported.clear()
    if isinstance(built, rebuild.Unclear):
        return _end(state, built.reason)
    if built.worker_count != state.rules.worker_count:
        return _end(
            state, f"had {built.worker_count} workers, here are {state.rules.worker_count} (MS_WORKER_NUM)"
        )
    _become(state, built)
    rows = _give_slots(state, built, pasts)
    for node in state.workers:
        if node.record.node_id in pasts:
            node.record = msgspec.structs.replace(node.record, rank=built.ranks.get(node.record.node_id))
    rows += _raise_incarnations(state, built)
    rows += _take_up_copies(state, pasts)
    event = state.event(
        EventKind.STORE_REBUILT,
        generation=built.generation,
        step=state.checkpoints.committed_step,
        reason="from what the workers reported",
        details=rebuild.report(built, {**gone, **pasts}),
    )
    return [RunRecord(run=built.run), *rows, *built.generations, *built.checkpoints, event]


def _raise_incarnations(state: SchedulerState, built: rebuild.Rebuilt) -> list[Record]:
    """Each process that has said what it knows is the same under the next number: none that the lost store has given is given again."""
    rows: list[Record] = []
    for node_id, known in built.incarnations.items():
        node = state.nodes[node_id]
        incarnation = Incarnation(max(known + 1, node.record.incarnation))
        node.record = msgspec.structs.replace(node.record, incarnation=incarnation)
        ended = "" if node.record.state.is_here else node.record.reason
        rows += [node.record, state.incarnation_record(node, ended=ended), *death_proof.process_records(node)]
    return rows


def _take_up_copies(state: SchedulerState, pasts: Mapping[NodeId, m.JobHistory]) -> list[Record]:
    """A node that is here holds copies of the job that it knows; the rows that say so."""
    rows: list[Record] = []
    for node_id, past in pasts.items():
        node = state.nodes[node_id]
        # Its number is another one since it has said so.
        state.copying.said_by[node_id] = node.record.incarnation
        of_job = past.copies if (past.job, past.run) == (state.job.job, state.job.run) else ()
        of_lineage = rollback.in_lineage((copy.checkpoint for copy in of_job), state.generations)
        rows += (
            state.checkpoints.copies.add(node_id, copy.rank, copy.checkpoint)
            for copy in of_job
            if copy.checkpoint in of_lineage
        )
    return rows


def _give_slots(
    state: SchedulerState, built: rebuild.Rebuilt, pasts: Mapping[NodeId, m.JobHistory]
) -> list[Record]:
    """A node that held a rank until the end has a slot, and one that was replaced has none: the processes came in any order. The rows of both.

    A slot is called by the place in which its rank was held first, as far as that is known: there its launcher starts it again.
    """
    holders = {node.record.node_id for node in state.workers}
    without_rank = [node_id for node_id in holders if node_id not in built.ranks]
    too_many = len(holders | set(built.ranks)) - len(holders)
    replaced = sorted(without_rank, key=natural_key)[:too_many]
    names = _names(state, built, pasts)
    for node_id in sorted(set(without_rank) - set(replaced), key=natural_key):
        own = state.nodes[node_id].slot
        names[node_id] = next(name for name in (own, node_id, *state.nodes) if name not in names.values())
    changed = [
        node
        for node_id, node in state.nodes.items()
        if node.record.role is m.Role.WORKER and node.slot != names.get(node_id, "")
    ]
    for node in changed:
        node.slot = ""
    for node in changed:
        node.slot = names.get(node.record.node_id, "")
    return [node.slot_record for node in changed]


def _names(
    state: SchedulerState, built: rebuild.Rebuilt, pasts: Mapping[NodeId, m.JobHistory]
) -> dict[NodeId, str]:
    """How the slot of each holder of a rank is called."""
    first: dict[Rank, str] = {}
    for node_id in sorted(pasts, key=lambda name: (pasts[name].generation, natural_key(name))):
        past = pasts[node_id]
        noted_by = past.noted_by or node_id
        replaces = node_id if past.noted_by else state.nodes[node_id].replaces
        first.setdefault(past.rank, slot_of(noted_by, replaces))
    names: dict[NodeId, str] = {}
    for node_id in sorted(built.ranks, key=lambda name: (pasts[name].generation, natural_key(name))):
        choice = (first[built.ranks[node_id]], node_id, *state.nodes)
        names[node_id] = next(name for name in choice if name not in names.values())
    return names


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
    state.checkpoints = CheckpointIndex(state.rules.world_size)
    state.checkpoints.load(built.checkpoints, state.generations)
