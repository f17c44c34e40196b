"""Which processes are let in: gathers the facts of one registration, asks the policy, and does what it says."""

from __future__ import annotations

import msgspec
from typing_extensions import assert_never

from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.effects import Answer, Persist
from recovery.core.handover_messages import HandedOver
from recovery.core.ids import ConnectionId, Incarnation, NodeId, ResumeToken
from recovery.core.policy.registration import (
    Admit,
    Applicant,
    Held,
    Refuse,
    Replaced,
    Resume,
    Situation,
    Slots,
    Token,
    Window,
    decide,
)
from recovery.core.records import (
    AS_STANDBY,
    STARTED_AGAIN,
    EventKind,
    EventRecord,
    NodeRecord,
    NodeState,
    Record,
)
from recovery.core.scheduler.effects import (
    CloseConnection,
    KeepConnection,
    SchedulerEffect,
    Send,
    SetTimer,
    WaitingTimer,
)
from recovery.core.scheduler.membership import death_proof, program_differences, slot_choice
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.refused import Waiting
from recovery.core.scheduler.state import RUN_FINISHED, SchedulerState
from recovery.core.scheduler.stimuli import MessageReceived
from recovery.core.tokens import request_of, token_digest

ASK_AGAIN_MS = 1_000
"""When the bearer of a living node's id may ask again. The node may die at any moment, so there is no exact time."""


def admit_or_refuse(
    state: SchedulerState, received: MessageReceived, register: m.Register, now_ms: int
) -> list[SchedulerEffect]:
    """Let a node in, or refuse it. A refusal changes nothing of the holder, its lease and its window included."""
    node = state.nodes.get(register.node_id)
    offer = slot_choice.find(state, node, register)
    fault = _violation(state, register, offer)
    if fault is not None:
        return refuse(state, received, register, fault, now_ms)
    if (
        node is not None
        and node.record.cause is Cause.RUN_FINISHED
        and _token_of(node, register) is Token.SAME
    ):
        # It did not receive the message that ended it.
        ended = m.JobEnded(outcome=m.JobOutcome.FINISHED, reason=RUN_FINISHED)
        return [Persist((), (Answer(received.connection, ended),))]
    handed_over = _handed_over(node, register)
    if handed_over is not None:
        if state.barrier is not None:
            state.barrier.note_back(register.node_id)
        return [Persist((), (Answer(received.connection, handed_over),))]
    decision = decide(_applicant(state, node, register, offer, now_ms), state.rules)
    match decision:
        case Refuse():
            if decision.retry_after_ms:
                return _refuse_for_now(state, received, register, decision, now_ms)
            return refuse(state, received, register, decision, now_ms)
        case Resume():
            assert node is not None, "only a known node resumes"
            return _resume(state, node, received, register, offer, now_ms)
        case Admit():
            return _admit(state, node, received, register, offer, now_ms)
        case _:
            assert_never(decision)


def _handed_over(node: Node | None, register: m.Register) -> HandedOver | None:
    """What the process of a rank that was handed over has not heard: its connection closed before that was written."""
    if node is None or node.record.state is not NodeState.LEFT or _token_of(node, register) is not Token.SAME:
        return None
    is_handed_over = node.record.cause is Cause.RANK_HANDED_OVER
    return HandedOver(reason=node.record.reason[:1024]) if is_handed_over else None


def job_fault_of(state: SchedulerState, register: m.Register) -> Refuse | None:
    """What makes this process no member of this job, whatever its id and whatever the run."""
    rules = state.rules
    if register.protocol != m.PROTOCOL_VERSION:
        return Refuse(
            "PROTOCOL_VERSION",
            f"this process speaks protocol {register.protocol}, the scheduler {m.PROTOCOL_VERSION}. "
            "Install the same release everywhere.",
        )
    for field, its, ours in (
        ("MS_WORKER_NUM", register.worker_count, rules.worker_count),
        ("MS_SERVER_NUM", register.server_count, rules.server_count),
        ("MS_ENABLE_RECOVERY", int(register.recovery_enabled), int(rules.recovery_enabled)),
    ):
        if its != ours:
            return Refuse(
                "JOB_MISMATCH",
                f'{field}={its} in node "{register.node_id}", but {ours} in the scheduler: it must be the same in every process.',
            )
    return None


def _violation(state: SchedulerState, register: m.Register, offer: slot_choice.SlotOffer) -> Refuse | None:
    """What makes this process no member of this run under this id. A rank that is given is given, and a standby needs none."""
    fault = job_fault_of(state, register)
    if fault is not None:
        return fault
    node = state.nodes.get(register.node_id)
    if node is not None and node.record.role is not register.role:
        return Refuse(
            "NODE_ID_INVALID",
            f'MS_NODE_ID="{register.node_id}" is the id of a {node.record.role.value}, this is a {register.role.value}. '
            "Give each process its own id.",
        )
    has_rank = node is not None and node.record.rank is not None
    asks_for_no_slot = bool(register.standby or register.replaces) and offer.slots is Slots.NONE
    if has_rank or asks_for_no_slot or offer.slots in (Slots.STANDBY, Slots.HELD):
        return None
    name = NodeId(offer.slot or register.node_id)
    misfit = state.slots[register.role].names.violation(name, state.slot_count(register.role))
    return Refuse("NODE_ID_INVALID", f"{misfit}. Give each process its own id.") if misfit else None


def _applicant(
    state: SchedulerState, node: Node | None, register: m.Register, offer: slot_choice.SlotOffer, now_ms: int
) -> Applicant:
    slots = offer.slots
    if node is None:
        token = Token.NONE if register.token is None else Token.FOREIGN
        situation = Situation(Held.UNKNOWN, token, Window.OVER, slots)
        return Applicant(
            node_id=register.node_id,
            situation=situation,
            silent_ms=0,
            suspect_left_ms=0,
            window_left_ms=0,
            standby=register.standby,
            replaced=_replaced(offer, now_ms),
        )
    held = node.held(has_slot=slots is Slots.FREE)
    situation = Situation(held, _token_of(node, register), node.window(now_ms), slots)
    suspect = node.record.state is NodeState.SUSPECT
    return Applicant(
        node_id=register.node_id,
        situation=situation,
        silent_ms=now_ms - node.heard_ms,
        suspect_left_ms=max(1, node.suspect_until_ms - now_ms) if suspect else ASK_AGAIN_MS,
        window_left_ms=max(0, node.window_ends_ms - now_ms),
        standby=register.standby,
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
    # The id alone proves nothing: it is stored, and in answers.
    proven = request_of(register.request_secret or "") == register.request_id
    if proven and register.request_id == record.admission_request:
        # The answer to its admission was lost on the way: it asks again.
        return Token.SAME
    if register.token is None:
        return Token.NONE
    if token_digest(register.token) == record.token_digest:
        return Token.SAME
    return Token.EARLIER if register.incarnation < record.incarnation else Token.FOREIGN


def refuse(
    state: SchedulerState, received: MessageReceived, register: m.Register, refusal: Refuse, now_ms: int
) -> list[SchedulerEffect]:
    """Say no, and close."""
    return [
        *_say_no(state, received, register, refusal, now_ms),
        CloseConnection(received.connection, f"refused: {refusal.code}"),
    ]


def _refuse_for_now(
    state: SchedulerState, received: MessageReceived, register: m.Register, refusal: Refuse, now_ms: int
) -> list[SchedulerEffect]:
    """Say no, and tell it on the same connection when its time has come. It also asks again by itself."""
    connection, wait_ms = received.connection, refusal.retry_after_ms or 0
    due_ms = now_ms + wait_ms if refusal.code == "REJOIN_WINDOW" else None
    effects = _say_no(state, received, register, refusal, now_ms)
    dropped = state.waiting.add(Waiting(received, register, due_ms))
    if dropped is not None:
        effects.append(CloseConnection(dropped, f"refused: {refusal.code}"))
    if dropped != connection:
        effects.append(KeepConnection(connection))
    next_ms = state.waiting.next_due_after(now_ms)
    if due_ms is not None and next_ms is not None:
        effects.append(SetTimer(WaitingTimer(), next_ms))
    return effects


def _say_no(
    state: SchedulerState, received: MessageReceived, register: m.Register, refusal: Refuse, now_ms: int
) -> list[SchedulerEffect]:
    """It becomes an event once: neither a repeat nor invented names fill log and store."""
    refused = m.Refused(
        request_id=register.request_id,
        code=refusal.code,
        reason=refusal.reason,
        retry_after_ms=refusal.retry_after_ms,
        holder_connected=refusal.holder_connected,
    )
    effects: list[SchedulerEffect] = [Send(received.connection, refused)]
    event = refusal_event(state, received, register, f"{refusal.code}: {refusal.reason}", now_ms)
    return effects if event is None else [Persist((event,)), *effects]


def refusal_event(
    state: SchedulerState, received: MessageReceived, register: m.Register, reason: str, now_ms: int
) -> EventRecord | None:
    """The row about a refusal, whose reason begins with its code; None: there is to be none."""
    node_id, peer = register.node_id, received.peer
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


def _resume(
    state: SchedulerState,
    node: Node,
    received: MessageReceived,
    register: m.Register,
    offer: slot_choice.SlotOffer,
    now_ms: int,
) -> list[SchedulerEffect]:
    effects = _close_older_connection(state, node)
    was_here = node.record.state is NodeState.LIVE
    state.vacancies.declined.pop(register.node_id, None)
    node.move(NodeState.LIVE)
    node.hangs = False
    if not node.record.host:
        # A rebuilt store does not know under which address it was seen.
        node.record = msgspec.structs.replace(node.record, host=register.host)
    token = register.token or received.fresh_token
    if token_digest(register.token or "") != node.record.token_digest:
        # A repeat of the admission: a new secret for the same incarnation.
        token = received.fresh_token
        node.record = msgspec.structs.replace(node.record, token_digest=token_digest(token))
    node.came_from = received.peer
    came_back = STARTED_AGAIN if node.is_restarting else "it came back"
    _connect(state, node, received.connection, register, now_ms)
    reason = "a new connection" if was_here else came_back
    rows: list[Record] = []
    if offer.slots is Slots.FREE and offer.slot != node.slot:
        # It waited as a standby, and while the job forms a slot has become free.
        rows = slot_choice.give_up_name(state, offer.slot, register.node_id, register.role)
        node.slot = offer.slot
        rows.append(node.slot_record)
    event = state.node_event(EventKind.NODE_RESUMED, node, reason=reason)
    admitted = _admitted(state, node, register, token, resumed=True)
    rows += death_proof.note_process(node, register.process)
    records = (node.record, *rows, state.incarnation_record(node), event)
    return [*effects, Persist(records, (Answer(received.connection, admitted),))]


def _admit(
    state: SchedulerState,
    node: Node | None,
    received: MessageReceived,
    register: m.Register,
    offer: slot_choice.SlotOffer,
    now_ms: int,
) -> list[SchedulerEffect]:
    record = NodeRecord(
        node_id=register.node_id,
        role=register.role,
        rank=node.record.rank if node and offer.slot else None,
        incarnation=Incarnation(node.record.incarnation + 1 if node else 1),
        state=NodeState.LIVE,
        token_digest=token_digest(received.fresh_token),
        admission_request=register.request_id,
        host=register.host,
        pid=register.pid,
    )
    effects = _close_older_connection(state, node) if node else []
    rows = slot_choice.give_up_name(state, offer.slot, register.node_id, register.role)
    own_name = offer.slot == register.node_id and not (node is not None and node.slot_is_stored)
    node = Node(record, heard_ms=now_ms, slot=None if own_name else offer.slot)
    state.put(node)
    state.vacancies.declined.pop(register.node_id, None)
    state.vacancies.reported_declines.pop(register.node_id, None)
    node.came_from = received.peer
    _connect(state, node, received.connection, register, now_ms)
    if node.slot_is_stored:
        rows.append(node.slot_record)
    event = state.node_event(EventKind.NODE_ADMITTED, node, details=_standing(node))
    admitted = _admitted(state, node, register, received.fresh_token, resumed=False)
    rows += death_proof.note_process(node, register.process)
    records = (record, *rows, state.incarnation_record(node), event)
    return [*effects, Persist(records, (Answer(received.connection, admitted),))]


def _standing(node: Node) -> str:
    """How it is let in, where that is not on a place of its own name."""
    if node.is_standby:
        return AS_STANDBY
    return f"in the slot of {node.slot}" if node.slot != node.record.node_id else ""


def _connect(
    state: SchedulerState, node: Node, connection: ConnectionId, register: m.Register, now_ms: int
) -> None:
    node.connection, node.heard_ms, node.sent_generation, node.asked = connection, now_ms, 0, 0
    node.proven_dead, node.given_up, node.replaces = False, False, register.replaces
    node.starts_again, node.is_restarting = register.starts_again, False
    node.waits_by_choice, node.serves = register.standby, register.serves
    node.program, node.differs = register.program, program_differences.look_at(state, node, register.program)
    state.copying.rescan = True
    state.store_rebuild.reported_generation = max(
        state.store_rebuild.reported_generation, register.generation
    )
    state.vacancies.pending_failure.discard(node.record.node_id)
    state.speakers[connection] = node.record.node_id
    state.refusals.forget(node.record.node_id)


def _close_older_connection(state: SchedulerState, node: Node) -> list[SchedulerEffect]:
    """An older connection of the id speaks for nobody any more, and nothing follows from the end of an older process."""
    older = state.disconnect(node)
    effects = death_proof.end_watch(node)
    if node.record.state is NodeState.LEFT:
        # It closes that connection itself, once it has heard that it may go: the word may still wait behind its write.
        return effects
    return effects if older is None else [*effects, CloseConnection(older, "replaced by a newer connection")]


def _admitted(
    state: SchedulerState, node: Node, register: m.Register, token: ResumeToken, *, resumed: bool
) -> m.Admitted:
    return m.Admitted(
        request_id=register.request_id,
        incarnation=node.record.incarnation,
        token=token,
        rank=node.record.rank,
        job=state.job.job,
        run=state.job.run,
        scheduler_incarnation=state.job.scheduler_incarnation,
        resumed=resumed,
        committed_step=state.checkpoints.committed_step,
        standby=node.is_standby,
        durable_step=state.checkpoints.durable_unless_committed,
        began=state.newest_starts,
        differs=node.differs,
    )
