"""Copies of the ranks' checkpoints on other nodes: which of them can give one, and which are ordered.

They are ordered when a step is committed: one step at a time, so that a slow network never queues more than one of a tier.

Nothing of what is under way is stored: the next scheduler orders what is missing of the newest committed step.
"""

from __future__ import annotations

from collections import Counter

from recovery.core import messages as m
from recovery.core.copy_messages import SOURCES_MAX, CopiesKept, CopyOrder
from recovery.core.effects import Answer, Persist
from recovery.core.held import HeldCheckpoint, Source
from recovery.core.ids import NodeId, Rank
from recovery.core.policy import copies as policy
from recovery.core.policy.ranks import natural_key
from recovery.core.records import EventKind, JobState, NodeState, Record
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def source(node: Node) -> Source | None:
    """Where a node's files can be fetched now; None: it is not here, or gives none."""
    if node.record.state is not NodeState.LIVE or not node.serves:
        return None
    return Source(node_id=node.record.node_id, address=node.serves)


def holders_here(
    state: SchedulerState, rank: Rank, step: int, *, any_said: bool = False
) -> tuple[Source, ...]:
    """The nodes from which a copy of a rank's contribution can be fetched now, in the order of their names.

    With `any_said` also a node that has not said yet what it holds for the next plan, and held it before.
    """
    found: list[Source] = []
    for node_id in sorted(state.checkpoints.copies.holders(rank, step), key=natural_key):
        where = source(state.nodes[node_id])
        digest = state.checkpoints.copies.holders(rank, step)[node_id].digest
        # A holder whose process is new says first what it holds; while ranks train, all have said so.
        node = state.nodes[node_id]
        has_said = (
            state.copying.said_by.get(node_id) == node.record.incarnation
            or state.job.state not in WAITING
            or any_said
        )
        if where is not None and has_said and (where.address, digest) not in state.copying.not_given:
            found.append(where)
    return tuple(found[:SOURCES_MAX])


def copies_for_plan(state: SchedulerState) -> dict[int, dict[Rank, HeldCheckpoint]]:
    """By step and rank: what a plan can go to although the rank's own node does not have it."""
    found: dict[int, dict[Rank, HeldCheckpoint]] = {}
    for node in state.slot_holders(m.Role.WORKER):
        rank = node.record.rank
        assert rank is not None, "a plan is for ranks"
        for step in state.checkpoints.copies.steps_of(rank):
            held = copy_for(state, node, rank, step)
            if held is not None:
                found.setdefault(step, {})[rank] = held
    return found


def copy_for(
    state: SchedulerState, node: Node, rank: Rank, step: int, *, any_said: bool = False
) -> HeldCheckpoint | None:
    """A copy that a node can go back to: it holds it itself, or can fetch it. None: there is none. Arguments as of `holders_here`."""
    holders = state.checkpoints.copies.holders(rank, step)
    own = holders.get(node.record.node_id)
    if own is not None:
        return own
    of_process = (rank, node.record.incarnation)
    for where in holders_here(state, rank, step, any_said=any_said):
        held = holders[where.node_id]
        if (*of_process, held.digest) not in state.copying.not_taken:
            return held
    return None


def is_elsewhere(state: SchedulerState, node: Node, needed: HeldCheckpoint, rank: Rank) -> bool:
    """Can a node get what is needed of a rank from others?"""
    held = copy_for(state, node, rank, needed.step, any_said=True)
    return held is not None and held.digest == needed.digest


ORDERS_MAX = 64
"""Copies that one holder is asked for at a time: where most ranks are on one host, another one's few hold the copies of them all. A quarter of
what waits for one peer before its connection is closed (`transport/outbox.py`); a holder fetches two at once."""


def committed(state: SchedulerState, step: int) -> m.Committed:
    """What is said to all ranks when a step is committed. It is copied next, or behind one that lies on their disks."""
    copying = state.copying
    copying.note_committed(step, in_memory=step != state.checkpoints.durable_step)
    return m.Committed(
        run=state.job.run,
        step=state.checkpoints.committed_step,
        durable_step=state.checkpoints.durable_unless_committed,
        copied=copying.copied_step,
        copying=copying.step,
        copied_in_memory=copying.copied_in_memory,
    )


def begin_generation(state: SchedulerState, step: int) -> None:
    """A plan goes to `step`: what was ordered is of the generation before it. What is missing of what lies on disks is copied first."""
    copying = state.copying
    copying.stop()
    copying.copied = tuple(copied for copied in copying.copied if copied <= step)
    copying.copied_in_memory = copying.copied_in_memory if copying.copied_in_memory <= step else 0
    copying.memory_refused = False
    _all_is_due(state)


def restore(state: SchedulerState) -> None:
    """Take over what is stored: which steps all have their copies, as the hosts are that are known."""
    hosts = {node.record.rank: node.record.host for node in state.workers if node.record.rank is not None}
    count = policy.count(state.rules.checkpoint_copies, len(set(hosts.values())))
    if count and len(hosts) == state.rules.world_size:
        copies = state.checkpoints.copies
        state.copying.copied = tuple(copies.steps_of_all(hosts, count, durable=True)[-2:])
        newest = max(copies.steps_of_all(hosts, count, durable=False), default=0)
        state.copying.copied_in_memory = newest if newest > state.copying.copied_step else 0
    _all_is_due(state)


def _all_is_due(state: SchedulerState) -> None:
    checkpoints = state.checkpoints
    state.copying.due = checkpoints.durable_step
    is_newer = checkpoints.committed_step > checkpoints.durable_step
    state.copying.due_in_memory = checkpoints.committed_step if is_newer else 0


def order(state: SchedulerState) -> list[SchedulerEffect]:
    """Order what can be ordered now, while a generation is under way."""
    copying = state.copying
    effects: list[SchedulerEffect] = []
    while (copying.due or copying.due_in_memory) and not copying.step and all_are_here(state):
        effects += _begin(state)
    if copying.step and copying.rescan:
        copying.rescan = False
        orders = _orders(state)
        effects += [Persist((), orders)] if orders else []
    return effects


def all_are_here(state: SchedulerState) -> bool:
    """Is everybody connected? A scheduler that was restarted knows nobody's address before."""
    # Asked at each message: nobody is looked at while fewer speak than there are workers.
    if len(state.speakers) < state.slots[m.Role.WORKER].taken:
        return False
    return all(node.connection is not None for node in state.workers)


def _begin(state: SchedulerState) -> list[SchedulerEffect]:
    """Begin with the newest step on disks, or in memory, as far as its copies are not there."""
    copying = state.copying
    copying.take_due()
    if any(_is_folder(state, Rank(rank)) for rank in range(state.rules.world_size)):
        copying.stop()
        return _folders_stay(state)
    nodes = {node.record.rank: node for node in state.workers if node.record.rank is not None and node.serves}
    hosts = {rank: node.record.host for rank, node in nodes.items()}
    count = policy.count(state.rules.checkpoint_copies, len(set(hosts.values())))
    records: list[Record] = _limited(state, count, len(set(hosts.values())))
    for rank, holders in policy.holders(hosts, count).items():
        for holder in holders:
            name = nodes[holder].record.node_id
            if name not in state.checkpoints.copies.holders(rank, copying.step):
                copying.pending[rank, name] = None
    if not copying.pending:
        # Without hosts to copy to, or after a plan that went back to what is copied: it is no news.
        copying.stop()
    return [Persist(tuple(records))] if records else []


def _is_folder(state: SchedulerState, rank: Rank) -> bool:
    wanted = _contribution(state, rank)
    return wanted is not None and wanted.is_folder


def _folders_stay(state: SchedulerState) -> list[SchedulerEffect]:
    """What a framework wrote as a folder is not copied. Where copies were to be made an event says so once, not at every commit."""
    hosts = len({node.record.host for node in state.workers if node.serves})
    if state.copying.folders_said or not policy.count(state.rules.checkpoint_copies, hosts):
        return []
    state.copying.folders_said = True
    reason = "its checkpoints are folders that a framework wrote, and these are not copied to other hosts"
    return [Persist((state.event(EventKind.COPIES_LIMITED, generation=state.job.generation, reason=reason),))]


def _limited(state: SchedulerState, count: int, hosts: int) -> list[Record]:
    """An event says once that there are fewer hosts than copies need."""
    wanted = state.rules.checkpoint_copies
    before, state.copying.limited_to = state.copying.limited_to, count
    if not wanted or count in (wanted, before):
        return []
    reason = (
        f"MS_CHECKPOINT_COPIES={wanted} needs {wanted + 1} hosts whose workers give files, there are {hosts}: "
        f"{count} of each checkpoint"
    )
    return [state.event(EventKind.COPIES_LIMITED, generation=state.job.generation, reason=reason)]


def _contribution(state: SchedulerState, rank: Rank) -> HeldCheckpoint | None:
    """What a rank has added to the step: its own file, or a copy while its node fetches it. Of one history there is one."""
    step = state.copying.step
    own = state.checkpoints.file_of(rank, step)
    return own or next(iter(state.checkpoints.copies.holders(rank, step).values()), None)


def _orders(state: SchedulerState) -> tuple[Answer, ...]:
    """What was not ordered yet on the holder's connection, of what somebody can give."""
    copying = state.copying
    copying.holds_back = False
    under_way = Counter(copying.pending.values())
    owners = {node.record.rank: node for node in state.workers}
    found: list[Answer] = []
    for (rank, name), ordered_on in copying.pending.items():
        holder = state.nodes[name].connection
        if holder is None or holder == ordered_on:
            continue
        wanted = _contribution(state, rank)
        given_by = _who_gives(state, owners[rank], rank, name)
        if wanted is not None and given_by:
            if under_way[holder] >= ORDERS_MAX:
                copying.holds_back = True
                continue
            under_way[holder] += 1
            order = CopyOrder(run=state.job.run, rank=rank, checkpoint=wanted, sources=given_by)
            copying.pending[rank, name] = holder
            found.append(Answer(holder, order))
    return tuple(found)


def _who_gives(state: SchedulerState, owner: Node, rank: Rank, holder: NodeId) -> tuple[Source, ...]:
    """The owner first: its disk has it, and a node that holds another copy has work of its own."""
    step = state.copying.step
    own = source(owner) if state.checkpoints.file_of(rank, step) is not None else None
    others = [source for source in holders_here(state, rank, step) if source.node_id != holder]
    return (*((own,) if own is not None else ()), *others)[:SOURCES_MAX]


def note_outcome(
    state: SchedulerState, rank: Rank, holder: NodeId, *, failed: bool
) -> tuple[list[Record], tuple[Answer, ...]]:
    """A copy that was ordered is there, or was given up. Gives what is to be written and said when it was the last one.

    Where one `failed` the step is not copied as a whole.
    """
    copying = state.copying
    del copying.pending[rank, holder]
    copying.rescan = copying.rescan or copying.holds_back
    copying.has_failed = copying.has_failed or failed
    return ([], ()) if copying.pending else _complete(state)


def _complete(state: SchedulerState) -> tuple[list[Record], tuple[Answer, ...]]:
    """No copy of the step is missing any more but those that were given up. The newest committed step is next."""
    copying = state.copying
    step, failed, in_memory = copying.step, copying.has_failed, copying.in_memory
    copying.stop()
    if failed:
        return [], ()
    copying.note_copied(step, in_memory=in_memory)
    reason = "in memory" if in_memory else ""
    event = state.event(
        EventKind.CHECKPOINT_COPIED, generation=state.job.generation, step=step, reason=reason
    )
    if state.job.state is not JobState.RUNNING:
        # A plan is being made: nobody is asked to let go what it may need.
        return [event], ()
    oldest, oldest_in_memory = copying.oldest, copying.oldest_in_memory
    kept = CopiesKept(
        run=state.job.run, copied=copying.copied_step, oldest=oldest, oldest_in_memory=oldest_in_memory
    )
    return [event, *state.checkpoints.copies.retire(oldest, oldest_in_memory)], state.to_all(kept)
