"""A process registers: the facts are gathered, the policy judges, and what it says is done.

Once a process is in, it is brought to where the job stands (`generations/plan_messages.py`). Those that were refused for now: refused.py.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from typing_extensions import assert_never

from recovery.core import messages as m
from recovery.core.barrier_messages import HandedOver
from recovery.core.effects import Answer, Log, Persist
from recovery.core.ids import Incarnation, NodeId, ResumeToken
from recovery.core.policy.registration import (
    Admit,
    Facts,
    JobOver,
    RankGone,
    Refuse,
    Replaced,
    Resume,
    StoreLost,
    judge,
)
from recovery.core.policy.registration_table import Held, Situation, Slots, Token, Window
from recovery.core.programs import Program, difference
from recovery.core.records import (
    AS_STANDBY,
    STARTED_AGAIN,
    EventKind,
    EventRecord,
    JobState,
    NodeRecord,
    NodeState,
    Record,
)
from recovery.core.scheduler import job_end
from recovery.core.scheduler.effects import (
    CloseConnection,
    KeepConnection,
    SchedulerEffect,
    Send,
    SetTimer,
    WaitingTimer,
)
from recovery.core.scheduler.membership import (
    death_proof,
    liveness,
    lost_scheduler_store,
    slot_choice,
)
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pending_facts import Arrival
from recovery.core.scheduler.refused import Waiting
from recovery.core.scheduler.state import RUN_FINISHED, SchedulerState
from recovery.core.scheduler.stimuli import MessageReceived
from recovery.core.tokens import is_request_of, token_digest

ASK_AGAIN_MS = 1_000
"""When the bearer of a living node's id may ask again. The node may die at any moment, so there is no exact time."""


class _Applicant(NamedTuple):
    """A process that asks to be let in."""

    received: MessageReceived
    register: m.Register
    """With its host."""
    offer: slot_choice.SlotOffer


def on_register(
    state: SchedulerState, received: MessageReceived, register: m.Register, now_ms: int
) -> list[SchedulerEffect]:
    """A process asks to be a member, or to go on as one. One that does not name its host is of the address that it comes from."""
    connection = received.connection
    register = msgspec.structs.replace(register, host=register.host or received.peer)
    speaker = state.speaker(connection)
    if speaker is not None and speaker.record.admission_request == register.request_id:
        # It asked again by itself while it was let in: the answer is on its way.
        speaker.heard_ms = now_ms
        return []
    if connection in state.speakers:
        return [CloseConnection(connection, "registered already on this connection")]
    node = state.nodes.get(register.node_id)
    one = _Applicant(received, register, slot_choice.find(state, node, register))
    decision = judge(_facts(state, node, one, now_ms))
    match decision:
        case Refuse():
            return _refuse(state, one, decision, now_ms)
        case JobOver():
            return _say_over(state, node, one, decision, now_ms)
        case RankGone():
            if state.barrier is not None:
                state.barrier.note_back(register.node_id)
            return [Persist((), (Answer(connection, HandedOver(reason=decision.reason)),))]
        case StoreLost():
            return [lost_scheduler_store.end_scheduler(state, decision.found)]
        case Resume():
            assert node is not None, "only a known node resumes"
            return _resume(state, node, one, now_ms)
        case Admit():
            return _admit(state, node, one, now_ms)
        case _:
            assert_never(decision)


def look_again(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """A window is over for which somebody waits."""
    state.waiting.note_due(now_ms)
    later_ms = state.waiting.next_due_after(now_ms)
    return [] if later_ms is None else [SetTimer(WaitingTimer(), later_ms)]


# --- the facts ----------------------------------------------------------------------------------------------------------


def _facts(state: SchedulerState, node: Node | None, one: _Applicant, now_ms: int) -> Facts:
    """What is known around it. A refusal changes nothing of the holder, its lease and its window included."""
    register, offer = one.register, one.offer
    token = Token.NONE if register.token is None else Token.FOREIGN
    situation = Situation(Held.UNKNOWN, token, Window.OVER, offer.slots)
    silent_ms, suspect_left_ms, window_left_ms = 0, 0, 0
    if node is not None:
        held = node.held(has_slot=offer.slots is Slots.FREE)
        situation = Situation(held, _token_of(node, register), node.window(now_ms), offer.slots)
        silent_ms, window_left_ms = now_ms - node.heard_ms, max(0, node.window_ends_ms - now_ms)
        suspect = node.record.state is NodeState.SUSPECT
        suspect_left_ms = max(1, node.suspect_until_ms - now_ms) if suspect else ASK_AGAIN_MS
    name = NodeId(offer.slot or register.node_id)
    return Facts(
        register=register,
        rules=state.rules,
        job=state.job,
        situation=situation,
        archived_jobs=state.archived_jobs,
        knows_nothing=state.knows_nothing,
        known=node.record if node is not None else None,
        misfit=state.slots[register.role].names.violation(name, state.slot_count(register.role)),
        silent_ms=silent_ms,
        suspect_left_ms=suspect_left_ms,
        window_left_ms=window_left_ms,
        replaced=_replaced(offer, now_ms),
    )


def _replaced(offer: slot_choice.SlotOffer, now_ms: int) -> Replaced | None:
    holder = offer.held_by
    if holder is None:
        return None
    is_connected = holder.record.state is NodeState.LIVE
    return Replaced(
        node_id=holder.record.node_id,
        is_connected=is_connected,
        silent_ms=now_ms - holder.heard_ms,
        ask_again_ms=ASK_AGAIN_MS if is_connected else max(1, holder.suspect_until_ms - now_ms),
        fills=offer.fills,
    )


def _token_of(node: Node, register: m.Register) -> Token:
    record = node.record
    proven = is_request_of(register.request_secret, register.request_id)
    if proven and register.request_id == record.admission_request:
        # The answer to its admission was lost on the way: it asks again.
        return Token.SAME
    if register.token is None:
        return Token.NONE
    if token_digest(register.token) == record.token_digest:
        return Token.SAME
    return Token.EARLIER if register.incarnation < record.incarnation else Token.FOREIGN


# --- it is not let in ---------------------------------------------------------------------------------------------------


def _refuse(state: SchedulerState, one: _Applicant, refusal: Refuse, now_ms: int) -> list[SchedulerEffect]:
    """Say no, and close; or tell it on the same connection when its time has come. It also asks again by itself.

    It becomes an event once: neither a repeat nor invented names fill log and store.
    """
    connection, wait_ms = one.received.connection, refusal.retry_after_ms or 0
    refused = m.Refused(
        request_id=one.register.request_id,
        code=refusal.code,
        reason=refusal.reason,
        retry_after_ms=refusal.retry_after_ms,
        holder_connected=refusal.holder_connected,
    )
    event = _refusal_event(state, one, f"{refusal.code}: {refusal.reason}", now_ms)
    effects: list[SchedulerEffect] = [Persist((event,))] if event is not None else []
    effects.append(Send(connection, refused))
    if not wait_ms:
        return [*effects, CloseConnection(connection, f"refused: {refusal.code}")]
    due_ms = now_ms + wait_ms if refusal.code == "REJOIN_WINDOW" else None
    dropped = state.waiting.add(Waiting(one.received, one.register, due_ms))
    if dropped is not None:
        effects.append(CloseConnection(dropped, f"refused: {refusal.code}"))
    if dropped != connection:
        effects.append(KeepConnection(connection))
    next_ms = state.waiting.next_due_after(now_ms)
    if due_ms is not None and next_ms is not None:
        effects.append(SetTimer(WaitingTimer(), next_ms))
    return effects


def _refusal_event(state: SchedulerState, one: _Applicant, reason: str, now_ms: int) -> EventRecord | None:
    """The row about a refusal, whose reason begins with its code; None: there is to be none."""
    node_id, peer = one.register.node_id, one.received.peer
    is_known = node_id in state.nodes
    count = state.refusals.note(
        node_id, reason.partition(":")[0], peer=peer, is_known=is_known, now_ms=now_ms
    )
    if not count:
        return None
    whom = "others under this id" if is_known else f"other names from {peer}"
    others = f" ({count - 1} {whom} were refused since the row before)" if count > 1 else ""
    return EventRecord(
        kind=EventKind.NODE_REFUSED, node_id=node_id, run=state.job.run, reason=reason + others
    )


def _say_over(
    state: SchedulerState, node: Node | None, one: _Applicant, over: JobOver, now_ms: int
) -> list[SchedulerEffect]:
    """It disconnects when it has the end, and its id is free for the next run."""
    connection = one.received.connection
    if over.is_run:
        ended = m.JobEnded(outcome=m.JobOutcome.FINISHED, reason=RUN_FINISHED)
        return [Persist((), (Answer(connection, ended),))]
    records: list[Record] = job_end.leave(state, [node] if node is not None else [])
    event = _refusal_event(state, one, over.event, now_ms) if over.event else None
    records += [event] if event is not None else []
    return [Persist(tuple(records), (Answer(connection, job_end.job_ended(state)),))]


# --- it is let in -------------------------------------------------------------------------------------------------------


def _resume(state: SchedulerState, node: Node, one: _Applicant, now_ms: int) -> list[SchedulerEffect]:
    """The same incarnation goes on."""
    register, offer = one.register, one.offer
    effects = _close_older_connection(state, node)
    came_back = STARTED_AGAIN if node.is_restarting else "it came back"
    reason = "a new connection" if node.record.state is NodeState.LIVE else came_back
    node.move(NodeState.LIVE)
    node.hangs = False
    if not node.record.host:
        # A rebuilt store does not know under which address it was seen.
        node.record = msgspec.structs.replace(node.record, host=register.host)
    token = register.token or one.received.fresh_token
    if token_digest(register.token or "") != node.record.token_digest:
        # A repeat of the admission: a new secret for the same incarnation.
        token = one.received.fresh_token
        node.record = msgspec.structs.replace(node.record, token_digest=token_digest(token))
    _connect(state, node, one, now_ms)
    rows: list[Record] = []
    if offer.slots is Slots.FREE and offer.slot != node.slot:
        # It waited as a standby, and while the job forms a slot has become free.
        rows = slot_choice.give_up_name(state, offer.slot, register.node_id, register.role)
        node.slot = offer.slot
        rows.append(node.slot_record)
    event = state.node_event(EventKind.NODE_RESUMED, node, reason=reason)
    return [*effects, *_let_in(state, node, one, token, rows, event)]


def _admit(state: SchedulerState, before: Node | None, one: _Applicant, now_ms: int) -> list[SchedulerEffect]:
    """The next incarnation begins."""
    register, slot = one.register, one.offer.slot
    record = NodeRecord(
        node_id=register.node_id,
        role=register.role,
        rank=before.record.rank if before and slot else None,
        incarnation=Incarnation(before.record.incarnation + 1 if before else 1),
        state=NodeState.LIVE,
        token_digest=token_digest(one.received.fresh_token),
        admission_request=register.request_id,
        host=register.host,
        pid=register.pid,
    )
    effects = _close_older_connection(state, before) if before else []
    rows = slot_choice.give_up_name(state, slot, register.node_id, register.role)
    own_name = slot == register.node_id and not (before is not None and before.slot_is_stored)
    node = Node(record, heard_ms=now_ms, slot=None if own_name else slot)
    state.put(node)
    state.vacancies.reported_declines.pop(register.node_id, None)
    _connect(state, node, one, now_ms)
    if node.slot_is_stored:
        rows.append(node.slot_record)
    standing = f"in the slot of {node.slot}" if node.slot != register.node_id else ""
    event = state.node_event(
        EventKind.NODE_ADMITTED, node, details=AS_STANDBY if node.is_standby else standing
    )
    return [*effects, *_let_in(state, node, one, one.received.fresh_token, rows, event)]


def _close_older_connection(state: SchedulerState, node: Node) -> list[SchedulerEffect]:
    """An older connection of the id speaks for nobody any more, and nothing follows from the end of an older process."""
    older = state.disconnect(node)
    effects = death_proof.end_watch(node)
    if node.record.state is NodeState.LEFT:
        # It closes that connection itself, once it has heard that it may go: the word may still wait behind its write.
        return effects
    return effects if older is None else [*effects, CloseConnection(older, "replaced by a newer connection")]


def _connect(state: SchedulerState, node: Node, one: _Applicant, now_ms: int) -> None:
    """It speaks on this connection from now on."""
    register, name = one.register, node.record.node_id
    node.connection, node.came_from = one.received.connection, one.received.peer
    node.heard_ms, node.sent_generation, node.asked = now_ms, 0, 0
    node.knew_generation = register.generation
    node.proven_dead, node.given_up, node.replaces = False, False, register.replaces
    node.starts_again, node.is_restarting = register.starts_again, False
    node.waits_by_choice, node.serves = register.standby, register.serves
    node.program, node.differs = register.program, _differs(state, node, register.program)
    node.stores, state.copying.rescan, state.uploading.rescan = register.stores, True, True
    state.store_rebuild.reported_generation = max(
        state.store_rebuild.reported_generation, register.generation
    )
    state.vacancies.declined.pop(name, None)
    state.vacancies.pending_failure.discard(name)
    state.speakers[one.received.connection] = name
    state.refusals.forget(name)


def _differs(state: SchedulerState, node: Node, program: Program | None) -> str:
    """How its program differs from what the first node of another host runs, where nobody has said so yet; empty: it does not, or does not say."""
    for other in state.nodes.values():
        if program is None or other.program is None or other.record.host == node.record.host:
            continue
        found = difference(program, other.program, node.record.host, other.record.host)
        if not found or (program, other.program) in state.differing:
            return ""
        state.differing |= {(program, other.program), (other.program, program)}
        return found[:1024]
    return ""


def _let_in(
    state: SchedulerState,
    node: Node,
    one: _Applicant,
    token: ResumeToken,
    rows: list[Record],
    event: EventRecord,
) -> list[SchedulerEffect]:
    """Write that it is a member and answer behind that; what follows for the generation is noted."""
    register = one.register
    admitted = m.Admitted(
        request_id=register.request_id,
        incarnation=node.record.incarnation,
        token=token,
        rank=node.record.rank,
        job=state.job.job,
        run=state.job.run,
        scheduler_incarnation=state.job.scheduler_incarnation,
        resumed=event.kind is EventKind.NODE_RESUMED,
        committed_step=state.checkpoints.committed_step,
        standby=node.is_standby,
        durable_step=state.checkpoints.durable_unless_committed,
        began=state.newest_starts,
        differs=node.differs,
    )
    rows += death_proof.note_process(node, register.process)
    records = (node.record, *rows, state.incarnation_record(node), event)
    effects: list[SchedulerEffect] = [Persist(records, (Answer(one.received.connection, admitted),))]
    if node.differs:
        said = state.node_event(EventKind.PROGRAM_DIFFERS, node, reason=node.differs)
        effects += [Persist((said,)), Log("program_differs", node.differs, warning=True)]
    if state.rules.heartbeat_enabled:
        effects.append(liveness.next_lease_check(state, node))
    lost = _what_is_lost(state, node, register)
    if lost:
        state.facts.fail(lost)
    state.facts.arrivals.append(Arrival(node, register))
    return effects


def _what_is_lost(state: SchedulerState, node: Node, register: m.Register) -> str:
    """Why a running generation cannot go on with a rank that has connected; empty: it can."""
    if state.job.state is not JobState.RUNNING or node.record.role is m.Role.SERVER or node.is_standby:
        return ""
    if register.generation > state.job.generation:
        return f"{node.record.node_id} knows generation {register.generation}, which the store has lost"
    if not register.generation and not register.incarnation:
        # A fresh process where a training one was: it replaced itself.
        return f"{node.record.node_id} came back without its training state"
    return ""
