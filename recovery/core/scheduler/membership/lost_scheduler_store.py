"""A scheduler that knows nothing meets workers that know a job: its store was lost.

Before a job's first plan nothing is lost by ending: the scheduler refuses by name, workers train on. With MS_REBUILD_STORE=1, and behind
`recovery rebuild`, it lets everybody in, waits until all are here, and goes on with the job that they report (`policy/rebuild.py`) by the
ordinary rules: numbers above all that were reported, each rank to its newest holder.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Union

import msgspec

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.effects import Exit, Log
from recovery.core.ids import Generation, Incarnation, NodeId
from recovery.core.policy import rebuild
from recovery.core.policy.ranks import natural_key, slot_of
from recovery.core.records import EventKind, NodeState, Record, RunRecord
from recovery.core.scheduler.effects import RebuildTimer, SchedulerEffect, SetTimer
from recovery.core.scheduler.membership import death_proof
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pauses import begins_again, was_paused
from recovery.core.scheduler.state import SchedulerState

STORE_LOST = "STORE_LOST"
REBUILDING = "the scheduler's store was lost and is rebuilt from what the workers tell"
"""The reason of a job that waits for that, for people."""


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
        return [end_scheduler(state, what)]
    return []


def end_scheduler(state: SchedulerState, reason: str) -> Exit:
    """The scheduler's own end: nothing was planned, so nothing is lost by it, and workers train on."""
    state.store_rebuild.ends_scheduler = True
    return Exit(STORE_LOST, reason)


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


def still_asking(state: SchedulerState, now_ms: int) -> Union[list[SchedulerEffect], None]:
    """What follows while a node is waited for; None: nobody is.

    One that has not said yet what it knows may have held a rank until the end. So may one that trains, while not all are here: it has one
    lease to come, unless somebody here has followed the newest plan that is known and all ranks are known up to that one.
    """
    if not state.builds_again:
        return None
    workers = [node for node in state.nodes.values() if node.record.role is m.Role.WORKER]
    if any(_may_still_say(node) for node in workers):
        return []
    built = _built(state)
    if isinstance(built, rebuild.Unclear) or (built and built.worker_count != state.rules.worker_count):
        # No matter which node comes, this is not the scheduler of that job.
        return None
    if len(_members(state, built, fills=state.store_rebuild.takes_standbys)) < state.rules.worker_count:
        return []
    lost = state.store_rebuild
    if built is None or _is_sure(state, built, workers):
        return None
    if lost.asks_until_ms is not None:
        return None if lost.has_asked else []
    lost.asks_until_ms = now_ms + state.rules.lease_ms
    unsure = "; ".join(built.unsure) or f"no node that came has trained in generation {built.generation}"
    text = f"{unsure}: a node that knows more has {state.rules.lease_ms / 1000:g} s to come (MS_NODE_TIMEOUT)"
    return [Log("store_rebuilding", text, warning=True), SetTimer(RebuildTimer(), lost.asks_until_ms)]


def on_asked(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """No node that knows more has come in its time, unless it was this process that was paused: then it may stand at the door."""
    lost = state.store_rebuild
    if lost.asks_until_ms is None:
        return []
    if not was_paused(lost.asks_until_ms, now_ms):
        lost.has_asked = True
        return []
    again = begins_again("the time for a node that knows more (MS_NODE_TIMEOUT)", lost.asks_until_ms, now_ms)
    lost.asks_until_ms = now_ms + state.rules.lease_ms
    return [again, SetTimer(RebuildTimer(), lost.asks_until_ms)]


def take_standbys(state: SchedulerState) -> list[SchedulerEffect]:
    """Nobody has come for a place until MS_TOPO_TIMEOUT: a standby has it from now on, if enough wait; it is said. Empty: none does.

    One may have taken that rank over before the store was lost, and not know it; then the worker whose place it was has ended for good. Where a
    rank has saved, a standby that knows no file of the missing one helps nobody: the next start has them, if that worker comes then.
    """
    lost, wanted = state.store_rebuild, state.rules.worker_count
    built = _built(state) if state.builds_again and not lost.takes_standbys else None
    if not isinstance(built, rebuild.Rebuilt) or built.checkpoints:
        return []
    here = len(_members(state, built, fills=False))
    lost.takes_standbys = here < wanted == len(_members(state, built, fills=True))
    if not lost.takes_standbys:
        return []
    who = f"{wanted - here} of {wanted} places"
    return [
        Log(
            "store_rebuilding",
            f"nobody came for {who} within MS_TOPO_TIMEOUT: standbys have them",
            warning=True,
        )
    ]


def _is_sure(state: SchedulerState, built: rebuild.Rebuilt, workers: Collection[Node]) -> bool:
    """Can nobody know more? Where all agree, standbys may have taken all ranks over since, and train."""
    ready = sum(node.ready is not None for node in workers)
    all_here = ready >= state.rules.worker_count + state.rules.standby_count
    return not built.unsure and (all_here or state.store_rebuild.reported_generation >= built.generation)


def _may_still_say(node: Node) -> bool:
    """Is it here and has not said what it knows, or may it be back in a moment?"""
    is_silent = node.record.state is NodeState.LIVE and node.ready is None
    return is_silent or node.record.state is NodeState.SUSPECT


def _is_here(state: SchedulerState, node: Node) -> bool:
    """Is it the very process that has said what its id knows?"""
    said, ready = state.store_rebuild.reported.get(node.record.node_id), node.ready
    return (
        node.record.state is NodeState.LIVE
        and ready is not None
        and ready.past is not None
        and ready.past is said
    )


def _built(state: SchedulerState) -> Union[rebuild.Rebuilt, rebuild.Unclear, None]:
    """What all know together; None: nobody knows anything."""
    reported = state.store_rebuild.reported
    here = {node.record.node_id for node in state.nodes.values() if _is_here(state, node)}
    return rebuild.rebuild(reported, here) if reported else None


def _members(state: SchedulerState, built: rebuild.Rebuilt | None, *, fills: bool) -> list[Node]:
    """Who has a slot from now on: the newest holders of the ranks, then who has one already, then who has come for one or had one.

    Of these first who is of the place of one that is gone. A second process of a place, which knows nothing and has no slot, is none while the first
    one is here: another worker is still to come. Where it `fills`, who waits as a standby is one too.
    """
    ranks = built.ranks if built is not None else {}
    slots = state.slots[m.Role.WORKER]
    left = slots.holders.keys() - set(slots.names)
    may_have = [
        node
        for node in state.nodes.values()
        if node.record.role is m.Role.WORKER and node.record.state is NodeState.LIVE
        if node.slot or not node.waits_by_choice or _is_here(state, node) or fills
    ]
    may_have.sort(
        key=lambda node: (
            node.record.node_id not in ranks,
            node.is_standby,
            _place(state, node) not in left,
            natural_key(node.record.node_id),
        )
    )
    places, members = set[str](), list[Node]()
    for node in may_have:
        name, place = node.record.node_id, _place(state, node)
        if node.slot or name in ranks or name in state.store_rebuild.reported or place not in places:
            members.append(node)
            places.add(place)
    return members[: state.rules.worker_count]


def take_up(state: SchedulerState) -> Union[list[Record], Exit]:
    """All ranks are ready: become the job that the workers know, if they know one; what is to be written.

    Exit when the workers contradict each other: nobody can say which job this is.
    """
    if not state.builds_again:
        return []
    built = _built(state)
    if isinstance(built, rebuild.Unclear):
        return end_scheduler(state, built.reason)
    if built is None and state.job.cause is Cause.STORE_REBUILT:
        return end_scheduler(
            state, f"has left traces here, and no worker that came knows anything of it ({state.job.reason})"
        )
    if built is not None and built.worker_count != state.rules.worker_count:
        return end_scheduler(
            state, f"had {built.worker_count} workers, here are {state.rules.worker_count} (MS_WORKER_NUM)"
        )
    state.store_rebuild.asks_until_ms, state.store_rebuild.has_asked = None, False
    members = _members(state, built, fills=state.store_rebuild.takes_standbys)
    rows = _give_slots(state, members, built.ranks if built is not None else {})
    state.store_rebuild.takes_standbys = False
    if built is None:
        return rows
    here = [node for node in state.nodes.values() if _is_here(state, node)]
    _become(state, built)
    rows += _raise_incarnations(state, built)
    for node in here:
        assert node.ready is not None, "it has said what it knows"
        node.record = msgspec.structs.replace(node.record, rank=built.ranks.get(node.record.node_id))
        # Its number is another one since it has said so.
        state.copying.said_by[node.record.node_id] = node.record.incarnation
        rows += state.checkpoints.copies.replace(node.record.node_id, state.copies_of_this_run(node.ready))
    state.store_rebuild.reported.clear()
    event = state.event(
        EventKind.STORE_REBUILT,
        generation=built.generation,
        reason="from what the workers reported",
        details=built.report,
    )
    return [RunRecord(run=built.run), *rows, *built.generations, *built.checkpoints, event]


def _place(state: SchedulerState, node: Node) -> str:
    """The first id of the place in which its process was started; there its launcher starts it again."""
    said = state.store_rebuild.reported.get(node.record.node_id)
    if said is not None and said.noted_by:
        return slot_of(said.noted_by, node.record.node_id)
    return node.place


def _give_slots(state: SchedulerState, members: Collection[Node], ranks: Collection[NodeId]) -> list[Record]:
    """These have a slot, and nobody else: the processes came in any order. The rows of both.

    It is called by the place of who had the rank, else as it was; but no two are by one name, and none by the id of a node that has another one.
    """
    names: dict[NodeId, str] = {}
    ids, taken = {node.record.node_id for node in members}, set[str]()
    for node in members:
        name = node.record.node_id
        wanted = _place(state, node) if name in ranks or not node.slot else node.slot
        is_of_another = wanted in taken or (wanted != name and wanted in ids)
        names[name] = name if is_of_another else wanted
        taken.add(names[name])
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


def _raise_incarnations(state: SchedulerState, built: rebuild.Rebuilt) -> list[Record]:
    """Each process that has said what it knows is the same under the next number: none that the lost store has given is given again."""
    rows: list[Record] = []
    for node_id, past in built.reports.items():
        node = state.nodes[node_id]
        incarnation = Incarnation(max(past.incarnation + 1, node.record.incarnation))
        node.record = msgspec.structs.replace(node.record, incarnation=incarnation)
        ended = "" if node.record.state.is_here else node.record.reason
        rows += [node.record, state.incarnation_record(node, ended=ended), *death_proof.process_records(node)]
    return rows


def _become(state: SchedulerState, built: rebuild.Rebuilt) -> None:
    """From now on this scheduler is of the job that was found."""
    state.store_rebuild.thousands_skipped = rebuild.thousands_skipped(state.job.job)
    scheduler_incarnation = max(built.scheduler_incarnation + 1, state.job.scheduler_incarnation)
    state.job = msgspec.structs.replace(
        state.job,
        job=built.job,
        run=built.run,
        generation=built.generation,
        scheduler_incarnation=Incarnation(scheduler_incarnation),
        reason=REBUILDING,
        cause=Cause.STORE_REBUILT,
    )
    state.generations = list(built.generations)
    state.checkpoints = CheckpointIndex(state.rules.world_size)
    state.checkpoints.load(built.checkpoints, state.generations)
