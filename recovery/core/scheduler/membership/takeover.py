"""Standbys take over lost ranks: which slot is offered to whom, what an answer means, and how a slot changes hands.

Nothing of this is stored but the result: a scheduler that is restarted asks again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Answer, Log, Persist
from recovery.core.ids import NodeId
from recovery.core.policy import takeover as policy
from recovery.core.policy.message_share import newest_that_fit
from recovery.core.policy.ranks import first_id, is_in_slot, natural_key
from recovery.core.policy.takeover import Vacancy
from recovery.core.records import EventKind, NodeState, Record
from recovery.core.scheduler import job_end
from recovery.core.scheduler.barrier import BarrierState
from recovery.core.scheduler.checkpoints import copying
from recovery.core.scheduler.effects import OfferTimer, SchedulerEffect, SetTimer
from recovery.core.scheduler.job_states import WAITING
from recovery.core.scheduler.membership import quorum, slot_choice
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pauses import begins_again, was_paused
from recovery.core.scheduler.state import Decline, OpenOffer, SchedulerState

# --- asking -------------------------------------------------------------------------------------------------------------


def offer_vacant(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Ask a standby for each vacant slot that nobody is asked for."""
    effects: list[SchedulerEffect] = _withdraw(state)
    slots = state.slots[m.Role.WORKER]
    asked = len(state.vacancies.offers)
    # Counted, since this is looked at after each message: of a large job everybody speaks while one rank is waited for.
    nobody_to_ask = slots.standbys <= asked and not state.vacancies.pending_failure
    if state.job.state not in WAITING or nobody_to_ask or slots.absent <= asked:
        return effects
    standbys = _not_asked(state)
    for holder, vacancy in _vacant(state, now_ms):
        standby = _candidate(state, holder, standbys)
        last = None
        if standby is None and vacancy is Vacancy.OFFER:
            last = _last_resort(state, holder, standbys)
        if last is not None:
            del standbys[last.record.node_id]
            effects += _offer(state, holder, last, now_ms, is_last=True)
        elif standby is None:
            effects += _nobody_left(state, holder, now_ms)
            if state.job_ended:
                # Nobody is waited for any more, so no other slot is looked at.
                return effects
        elif vacancy is Vacancy.OFFER:
            del standbys[standby.record.node_id]
            effects += _offer(state, holder, standby, now_ms)
        else:
            chosen = _candidate(state, holder, _may_take_slot(state, holder, standbys))
            if chosen is not None:
                del standbys[chosen.record.node_id]
                effects.append(Persist(tuple(_move(state, holder, chosen))))
    return effects


def _vacant(state: SchedulerState, now_ms: int) -> list[tuple[Node, Vacancy]]:
    """Whose slots are to be given away and are not offered yet, by rank."""
    found = [
        (node, policy.vacancy(node.record.state, state.job.state, has_rank=node.record.rank is not None))
        for node in state.nodes.values()
        if node.record.role is m.Role.WORKER and node.slot and node.slot not in state.vacancies.offers
        if not node.keeps_rank(now_ms, state.rules.lease_ms)
    ]
    return sorted(
        ((node, vacancy) for node, vacancy in found if vacancy is not Vacancy.NOT),
        key=lambda pair: (pair[0].record.rank or 0, natural_key(pair[0].slot)),
    )


def _not_asked(state: SchedulerState) -> dict[NodeId, policy.Candidate]:
    """The standbys that are here and were asked for no slot. None of a host that ranks are just leaving."""
    asked = {offer.standby for offer in state.vacancies.offers.values()}
    left_hosts = _hosts_being_left(state)
    return {
        node.record.node_id: policy.Candidate(
            node.record.node_id,
            node.record.host,
            is_warm=node.ready is not None,
            comes_for=_comes_for(state, node),
        )
        for node in state.nodes.values()
        if node.is_standby and node.record.state is NodeState.LIVE
        if node.record.node_id not in asked and node.record.host not in left_hosts
    }


def _comes_for(state: SchedulerState, standby: Node) -> str:
    """The vacant slot that it was started for; empty: it takes any, also since it reads nothing of that one's rank.

    One that may read an older step of it, on the lost one's host, is its last resort: with another rank, it would leave this one to nobody.
    """
    name = standby.record.node_id
    holder = slot_choice.wanted_slot(state, name, standby.replaces)
    if holder is None:
        return ""
    decline = state.vacancies.declined.get(name, {}).get(holder.slot)
    may_take_it = decline is None or (decline.newest != 0 and standby.record.host == holder.record.host)
    return holder.slot if may_take_it else ""


def _hosts_being_left(state: SchedulerState) -> frozenset[str]:
    """From where ranks are being handed over. When that takes too long, a standby there may take one after all."""
    barrier = state.barrier
    is_under_way = barrier is not None and barrier.state is BarrierState.HANDING_OVER
    return frozenset(barrier.left_hosts) if barrier is not None and is_under_way else frozenset()


def _candidate(
    state: SchedulerState, holder: Node, standbys: Mapping[NodeId, policy.Candidate]
) -> Node | None:
    declined = {node_id for node_id, slots in state.vacancies.declined.items() if holder.slot in slots}
    chosen = policy.next_candidate(_wanted(holder), standbys.values(), declined)
    return None if chosen is None else state.nodes[chosen.node_id]


def _wanted(holder: Node) -> policy.Wanted:
    return policy.Wanted(slot=holder.slot, host=holder.record.host)


def _last_resort(
    state: SchedulerState, holder: Node, standbys: Mapping[NodeId, policy.Candidate]
) -> Node | None:
    """The standby that takes the rank with what it can read, when all have declined.

    One that was started in the place of a lost one, on the host of this one: its launcher does not bring the lost id back, and it
    reads what that one would read. Any there, once a process that was started in its place has another rank. Or one that was started
    for this very rank on another host, once other hosts hold an earlier step as a whole: nothing but that step is left where the lost
    host does not come back.
    """
    lost = holder.record.node_id
    has_another = any(
        node.slot and node is not holder and (node.replaces == lost or is_in_slot(lost, node.place))
        for node in state.nodes.values()
    )
    copied = state.copying.copied_step or state.copying.copied_in_memory
    beside = [
        standby
        for standby in standbys.values()
        if (standby.host == holder.record.host and (has_another or _is_in_place(state, holder, standby)))
        or (copied and state.nodes[standby.node_id].replaces == lost)
    ]
    chosen = policy.next_candidate(_wanted(holder), beside, ())
    return None if chosen is None else state.nodes[chosen.node_id]


def _is_in_place(state: SchedulerState, holder: Node, standby: policy.Candidate) -> bool:
    replaces = state.nodes[standby.node_id].replaces
    return bool(replaces) or first_id(standby.node_id) == first_id(NodeId(holder.slot))


def _may_take_slot(
    state: SchedulerState, holder: Node, standbys: Mapping[NodeId, policy.Candidate]
) -> Mapping[NodeId, policy.Candidate]:
    """The standbys that may have the slot of a lost one that was given no rank yet.

    While a lost store is built again, only the workers know which node had which rank: a standby takes the slot of none that may still come
    and say so.
    """
    if state.slots[m.Role.WORKER].taken >= state.rules.worker_count:
        return {}
    return (
        standbys if not state.builds_again or holder.record.node_id in state.vacancies.pending_failure else {}
    )


def _offer(
    state: SchedulerState, holder: Node, standby: Node, now_ms: int, *, is_last: bool = False
) -> list[SchedulerEffect]:
    slot, name = holder.slot, standby.record.node_id
    until_ms = now_ms + state.rules.abort_timeout_ms
    state.vacancies.offers[slot] = OpenOffer(name, until_ms, is_last)
    text = f"rank {holder.record.rank} of {holder.record.node_id} is offered to {name}"
    if is_last:
        text += " with whatever it can read: no standby reads more"
    is_news = is_last or all(
        reported != slot for reported, _ in state.vacancies.reported_declines.get(name, ())
    )
    return [
        *([Log("takeover_offered", text)] if is_news else []),
        _offer_to(state, standby, holder),
        SetTimer(OfferTimer(slot), until_ms),
    ]


def ask_holder(state: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    """Ask a node that took a rank over, and has not followed a plan since, what it can read of the rank's files.

    Nobody else is asked while it is here, so it is asked again when it does not answer: each time twice as late, since a look that
    only takes long is answered too.
    """
    wait_ms = state.rules.abort_timeout_ms << node.asked
    node.asked, node.ask_again_ms = node.asked + 1, now_ms + wait_ms
    return [_offer_to(state, node, node), SetTimer(OfferTimer(node.slot), node.ask_again_ms)]


def _ask_holder_again(state: SchedulerState, slot: str, now_ms: int) -> list[SchedulerEffect]:
    holder = state.holder(slot)
    if holder is None or not holder.asked or holder.connection is None or now_ms < holder.ask_again_ms:
        return []
    text = f"{holder.record.node_id} has not said what it can read of rank {holder.record.rank}; it is asked again"
    return [Log("takeover_offered", text), *ask_holder(state, holder, now_ms)]


def _offer_to(state: SchedulerState, node: Node, holder: Node) -> Persist:
    """Ask a node what it can read of a rank's files. Behind everything that is written before it.

    Where the node is the holder itself it took the rank over, and has not followed a plan since.
    """
    rank = holder.record.rank
    assert rank is not None, "only a rank that is given is offered"
    assert node.connection is not None, "a node that is asked is connected"
    step = state.checkpoints.committed_step
    offer = m.Offer(
        run=state.job.run,
        rank=rank,
        replaced=NodeId(holder.slot) if holder is node else holder.record.node_id,
        committed_step=step,
        held=newest_that_fit(
            state.checkpoints.held_by(rank), committed_step=step, frame_bytes_max=state.rules.frame_bytes_max
        ),
        began=state.newest_starts,
    )
    return Persist((), (Answer(node.connection, offer),))


def _nobody_left(state: SchedulerState, holder: Node, now_ms: int) -> list[SchedulerEffect]:
    """No standby can take the rank. Where its launcher does not start it again either, the job cannot go on."""
    if (
        holder.record.node_id not in state.vacancies.pending_failure
        or state.vacancies.offers
        or _one_may_come_back(state)
    ):
        return []
    state.vacancies.pending_failure.discard(holder.record.node_id)
    what = f"{holder.record.node_id}: {holder.record.reason}; it is not started again, and no standby can take its rank"
    what += quorum.who_declined(state)
    return job_end.end(state, m.JobOutcome.JOB_FAILED, what, now_ms)


def _one_may_come_back(state: SchedulerState) -> bool:
    """Is there a standby whose connection has just closed, or on a host that is being left? It is asked later."""
    left_hosts = _hosts_being_left(state)
    return any(
        node.is_standby
        and (
            node.record.state is NodeState.SUSPECT
            or (node.record.state is NodeState.LIVE and node.record.host in left_hosts)
        )
        for node in state.nodes.values()
    )


# --- answers ------------------------------------------------------------------------------------------------------------


def answered(state: SchedulerState, standby: Node, ready: m.Ready) -> list[Record]:
    """A standby has said what it can read of a rank's files; what is to be written. It has the rank if that suffices."""
    name = standby.record.node_id
    slot = next((slot for slot, offer in state.vacancies.offers.items() if offer.standby == name), "")
    holder = state.holder(slot)
    if holder is None or holder.record.rank != ready.rank:
        # Too late: another one was asked meanwhile, or the holder came back. It is well, so it may be asked again.
        state.vacancies.declined.pop(name, None)
        return []
    rank = holder.record.rank
    assert rank is not None, "a Ready with a rank answers an offer of it"
    needed = state.checkpoints.needed_of(rank)
    held = state.held_by(ready, rank)
    fault = policy.violation(needed, held)
    if needed is not None and fault and copying.is_elsewhere(state, standby, needed, rank):
        # Other nodes have copies of it, and give it one when it follows the plan.
        fault = ""
    if fault and not state.vacancies.offers[slot].is_last:
        return _declined(state, slot, fault, max((one.step for one in held), default=0))
    del state.vacancies.offers[slot]
    return _move(state, holder, standby, lacks=fault)


def on_offer_due(state: SchedulerState, slot: str, now_ms: int) -> list[SchedulerEffect]:
    """An offer was not answered in time: the next standby is asked, or the holder once more."""
    offer = state.vacancies.offers.get(slot)
    if offer is None:
        return _ask_holder_again(state, slot, now_ms)
    if now_ms < offer.until_ms:
        return []
    if was_paused(offer.until_ms, now_ms):
        again = begins_again(
            f"the time of {offer.standby} to answer (MS_ABORT_TIMEOUT)", offer.until_ms, now_ms
        )
        until_ms = now_ms + state.rules.abort_timeout_ms
        state.vacancies.offers[slot] = offer._replace(until_ms=until_ms)
        return [again, SetTimer(OfferTimer(slot), until_ms)]
    reason = f"it did not answer within {state.rules.abort_timeout_ms / 1000:g} s (MS_ABORT_TIMEOUT)"
    return [Persist(tuple(_declined(state, slot, reason)))]


def _declined(state: SchedulerState, slot: str, reason: str, newest: int | None = None) -> list[Record]:
    """It is not asked for this slot again until something changes. The same answer to the next question is no news."""
    standby = state.vacancies.offers[slot].standby
    state.vacancies.declined.setdefault(standby, {})[slot] = Decline(reason, newest)
    event = _closed(state, slot, reason)
    reported = state.vacancies.reported_declines.setdefault(standby, set())
    if (slot, reason) in reported:
        return []
    reported.add((slot, reason))
    return [event]


def _closed(state: SchedulerState, slot: str, reason: str) -> Record:
    """An offer is over, and the slot has not moved."""
    standby = state.nodes[state.vacancies.offers.pop(slot).standby]
    holder = state.slots[m.Role.WORKER].holders[slot]
    return state.node_event(EventKind.TAKEOVER_DECLINED, standby, reason=reason, details=holder)


def _withdraw(state: SchedulerState) -> list[SchedulerEffect]:
    """Close the offers of slots whose holder is back, and those to standbys that are gone."""
    records: list[Record] = []
    for slot, offer in list(state.vacancies.offers.items()):
        holder = state.nodes[state.slots[m.Role.WORKER].holders[slot]]
        standby = state.nodes[offer.standby]
        is_open = policy.vacancy(
            holder.record.state, state.job.state, has_rank=holder.record.rank is not None
        )
        if is_open is not Vacancy.OFFER:
            records.append(_closed(state, slot, f"{holder.record.node_id} is back, or nobody is waited for"))
        elif standby.record.state is not NodeState.LIVE:
            records += _declined(state, slot, "its connection closed before it answered")
    return [Persist(tuple(records))] if records else []


# --- the slot changes hands ---------------------------------------------------------------------------------------------


def _move(state: SchedulerState, holder: Node, standby: Node, *, lacks: str = "") -> list[Record]:
    """One write: the lost one has neither slot nor rank any more, the standby has both."""
    rank, slot = holder.record.rank, holder.slot
    holder.slot = ""
    holder.record = msgspec.structs.replace(holder.record, rank=None)
    standby.slot = slot
    standby.record = msgspec.structs.replace(standby.record, rank=rank)
    state.vacancies.declined.pop(standby.record.node_id, None)
    state.vacancies.pending_failure.discard(holder.record.node_id)
    event = state.node_event(
        EventKind.RANK_TAKEN_OVER,
        standby,
        reason=f"{holder.record.reason}; {lacks}, and nobody reads more" if lacks else holder.record.reason,
        details=holder.record.node_id,
    )
    return [
        holder.record,
        holder.slot_record,
        standby.record,
        standby.slot_record,
        state.incarnation_record(standby),
        event,
    ]
