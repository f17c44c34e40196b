"""Which slot is there for a process that registers: its own, a free one, that of the id it replaces, none as a standby, or none at all."""

from __future__ import annotations

from typing import NamedTuple

from recovery.core import messages as m
from recovery.core.ids import NodeId
from recovery.core.policy.ranks import first_id, is_in_slot, slot_of
from recovery.core.policy.registration_table import Slots
from recovery.core.records import JobState, NodeState, Record
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


class SlotOffer(NamedTuple):
    """What a process is let in on, if it is let in."""

    slots: Slots
    slot: str = ""
    """The name of the slot; empty: it holds none."""
    held_by: Node | None = None
    """The node that must be lost first, where the slot is held."""
    fills: bool = False
    """All slots are taken, and that one has any of them."""


def find(state: SchedulerState, node: Node | None, register: m.Register) -> SlotOffer:
    """Look for a slot."""
    own = _own_slot(state, node)
    if own and _is_free(state, own, node, register.role):
        return SlotOffer(Slots.FREE, own)
    if register.role is m.Role.SERVER:
        free = _is_free(state, register.node_id, node, register.role)
        return SlotOffer(Slots.FREE, register.node_id) if free else SlotOffer(Slots.NONE)
    holder = _must_be_lost_first(state, node, register)
    if holder is not None and not state.builds_again:
        return SlotOffer(Slots.HELD, held_by=holder)
    if state.job.state is JobState.FORMING and not _wants_to_stand_by(state, register):
        slot = _slot_to_begin_in(state, register)
        if slot and _is_free(state, slot, node, register.role):
            return SlotOffer(Slots.FREE, slot)
    if _may_stand_by(state, node, register):
        return SlotOffer(Slots.STANDBY)
    holder = _unless_itself(state.holder(register.node_id), node)
    if holder is not None and holder.record.state.is_here and register.token is None:
        # Its launcher was started again, and the holder of the slot may have died with it: a host that lost power closes no connection.
        return SlotOffer(Slots.HELD, held_by=holder)
    holder = _may_be_gone(state, node, register)
    if holder is not None:
        # To be refused for good ends a process for good: its launcher takes the job to be complete without it.
        return SlotOffer(Slots.HELD, held_by=holder, fills=True)
    return SlotOffer(Slots.NONE)


def _must_be_lost_first(state: SchedulerState, node: Node | None, register: m.Register) -> Node | None:
    """The node that this process comes to replace, if it has not been lost yet.

    One that names none comes back to the slot of its own name: its launcher was started again, and the last holder may be dead with it. One that
    is connected is not, as far as anybody knows: it waits among the standbys, if one more may wait. So does a fresh id that is new come for the
    slot by which it is called, worker_0 for worker_0.2: on another slot, or as a standby, it would keep its id from the process that its launcher
    starts for that very slot.
    """
    if register.replaces:
        replaced = _unless_itself(state.nodes.get(register.replaces), node)
        return replaced if replaced is not None and replaced.record.state.is_here else None
    is_new = node is None and not _wants_to_stand_by(state, register)
    for name in (register.node_id, first_id(register.node_id) if is_new else register.node_id):
        holder = _unless_itself(state.holder(name), node)
        if holder is not None and holder.record.state is NodeState.SUSPECT:
            return holder
    return None


def _unless_itself(found: Node | None, node: Node | None) -> Node | None:
    return None if found is node else found


def wanted_slot(state: SchedulerState, node_id: NodeId, replaces: str = "") -> Node | None:
    """The lost holder of the rank that a process without one came for; None: it came for no rank, or another one has it.

    A process that was never here names nobody. Its launcher has called it after its slot: worker_0.2 is of worker_0.
    """
    for name in map(NodeId, (replaces, node_id, first_id(node_id))):
        replaced = state.nodes.get(name)
        holder = state.holder((replaced.slot if replaced is not None else "") or name)
        if holder is not None and holder.is_vacant:
            return holder
    return None


def give_up_name(state: SchedulerState, slot: str, node_id: NodeId, role: m.Role) -> list[Record]:
    """While forming a slot goes to a node that is here: an absent holder of its name loses it; the row that says so."""
    holder = state.holder(slot, role)
    if holder is None or holder.record.node_id == node_id:
        return []
    holder.slot = ""
    return [holder.slot_record]


def _own_slot(state: SchedulerState, node: Node | None) -> str:
    """The slot that an id keeps when its process comes or comes back."""
    if node is None:
        return ""
    is_lost_while_forming = state.job.state is JobState.FORMING and node.record.state is NodeState.LOST
    keeps = node.record.rank is not None or node.record.state.is_here or is_lost_while_forming
    return node.slot if keeps else ""


def _is_free(state: SchedulerState, slot: str, node: Node | None, role: m.Role) -> bool:
    """Is there a slot left, and this name not taken by another? What a node has itself is free for it.

    A slot with a rank is taken while its holder is away too: the rank goes to a standby, with its files.
    """
    slots = state.slots[role]
    others = slots.taken - (node is not None and state.has_slot(node))
    if slots.forming:
        others += slots.vacant - (node is not None and node.is_vacant)
    if others >= state.slot_count(role):
        return False
    holder = state.holder(slot, role)
    return holder is None or holder is node or not (state.has_slot(holder) or holder.is_vacant)


def _slot_to_begin_in(state: SchedulerState, register: m.Register) -> str:
    """While forming: the slot of the id that it replaces, else that of its own name.

    Empty: that one has a rank, which is offered, or a standby has its slot.
    """
    replaced = state.nodes.get(register.replaces)
    if replaced is None:
        slot = slot_of(register.node_id, register.replaces)
        return slot if slot != register.node_id else register.replaces or register.node_id
    return "" if replaced.record.rank is not None else replaced.slot


def _wants_to_stand_by(state: SchedulerState, register: m.Register) -> bool:
    """A process that has trained by a plan is a member, whatever it was started as: its scheduler has lost its store.

    While that is built again it takes a slot when it has said so (lost_scheduler_store.py): its id may be none that a slot is called by.
    """
    return register.standby and (state.builds_again or not register.generation)


def _may_stand_by(state: SchedulerState, node: Node | None, register: m.Register) -> bool:
    """May one more wait as a standby? A process that was started to replace a lost id is let in for every vacant slot.

    So is the id by which a slot is called: its launcher was started again, and knows nothing of the id that held it last. The present
    holder may have come for the vacant one. And so is an id that was a member before: where another one has its rank, a rank that
    nobody has may be that one's.
    """
    if not state.rules.recovery_enabled:
        return False
    slots = state.slots[m.Role.WORKER]
    is_one = node is not None and node.is_standby and node.record.state.is_here
    standbys_max = state.rules.standby_count + (
        slots.vacant if _comes_for_a_rank(state, node, register) else 0
    )
    if state.builds_again:
        # Which of them had the ranks until the end is known when all have said what they know.
        standbys_max += state.rules.worker_count
        if not register.standby and _started_as_workers(state, node) < state.rules.worker_count:
            # Second processes of standbys may fill that: they are no members unless they know the job, and a worker is awaited.
            return True
    return slots.standbys - is_one < standbys_max or _comes_first_for_a_rank(state, node, register)


def _started_as_workers(state: SchedulerState, apart_from: Node | None) -> int:
    """How many workers are here, or may be back in a moment, that were not started as standbys."""
    return sum(
        node.record.role is m.Role.WORKER and node.record.state.is_here and not node.waits_by_choice
        for node in state.nodes.values()
        if node is not apart_from
    )


def _comes_for_a_rank(state: SchedulerState, node: Node | None, register: m.Register) -> bool:
    names = (register.node_id, first_id(register.node_id))
    is_known = node is not None or any(state.holder(name) is not None for name in names)
    return bool(register.replaces) or is_known


def _comes_first_for_a_rank(state: SchedulerState, node: Node | None, register: m.Register) -> bool:
    """Is it the successor of a lost holder, and nobody else of its slot waits? Or is it the only one on the host of a vacant rank?

    All of them may be taken by standbys that cannot read the files. Only a process that reads what the lost one would may go on without them.
    Who waits on that host and has declined its ranks does not stand in the way.
    """
    slot, host = slot_of(register.node_id, register.replaces), register.host
    everybody = state.nodes.values()
    others = [
        other for other in everybody if other.is_standby and other.record.state.is_here and other is not node
    ]
    if wanted_slot(state, register.node_id, register.replaces) is not None:
        return not any(is_in_slot(other.record.node_id, slot) for other in others)
    vacant = {other.slot for other in everybody if other.is_vacant and other.record.host == host}
    declined = state.vacancies.declined
    may_take = (
        other
        for other in others
        if other.record.host == host and not vacant.issubset(declined.get(other.record.node_id, ()))
    )
    return bool(vacant) and _comes_for_a_rank(state, node, register) and not any(may_take)


def _may_be_gone(state: SchedulerState, node: Node | None, register: m.Register) -> Node | None:
    """The node that has a slot that this process could have, is not connected, and is the first to be known as lost if it does not come back."""
    if not state.rules.recovery_enabled:
        return None
    comes_for_a_rank = _comes_for_a_rank(state, node, register)
    is_forming = state.job.state is JobState.FORMING
    may_stand_by = state.rules.standby_count or is_forming or comes_for_a_rank
    suspects = (
        other
        for other in state.nodes.values()
        if other.record.state is NodeState.SUSPECT
        and other.record.role is m.Role.WORKER
        and (may_stand_by if other.is_standby else is_forming or comes_for_a_rank)
    )
    return min(suspects, key=lambda suspect: suspect.suspect_until_ms, default=None)
