"""Who is let in: gathers the facts of one registration, asks the policy, carries its verdict into the table."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.ids import ConnectionId, Incarnation, ResumeToken
from recovery.core.policy.registration import (
    Admit,
    Applicant,
    Held,
    Refuse,
    Resume,
    Seats,
    Situation,
    Token,
    Window,
    decide,
)
from recovery.core.records import EventKind, EventRecord, NodeRecord, NodeState
from recovery.core.scheduler.effects import CloseConnection, SchedulerEffect, Send
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import RUN_FINISHED, SchedulerState
from recovery.core.scheduler.stimuli import MessageReceived
from recovery.core.tokens import token_digest

ASK_AGAIN_MS = 1_000
"""When the bearer of a living node's id may ask again. The node may die at any moment, so there is no exact time."""


def register(table: SchedulerState, received: MessageReceived, now_ms: int) -> list[SchedulerEffect]:
    """Let a node in, or refuse it. A refusal changes nothing of the holder, its lease and its window included."""
    message = received.message
    assert isinstance(message, m.Register), "only registrations come here"
    node = table.nodes.get(message.node_id)
    fault = _fault_of(table, message)
    if fault is not None:
        return refuse(table, received.connection, message, fault)
    if node is not None and node.record.reason == RUN_FINISHED and _token_of(node, message) is Token.SAME:
        ended = m.JobEnded(outcome=m.JobOutcome.FINISHED, reason=RUN_FINISHED)  # it missed the last word
        return [Persist((), (Answer(received.connection, ended),))]
    decision = decide(_applicant(table, node, message, now_ms), table.rules)
    if isinstance(decision, Refuse):
        return refuse(table, received.connection, message, decision)
    if isinstance(decision, Resume):
        assert node is not None, "only a known node resumes"
        return _resume(table, node, received, now_ms)
    assert isinstance(decision, Admit), "the policy knows three verdicts"
    return _admit(table, node, received, now_ms)


def job_fault_of(table: SchedulerState, register: m.Register) -> Refuse | None:
    """What makes this process no member of this job, whatever its id and whatever the run."""
    rules = table.rules
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


def _fault_of(table: SchedulerState, register: m.Register) -> Refuse | None:
    """What makes this process no member of this run under this id."""
    fault = job_fault_of(table, register)
    if fault is not None:
        return fault
    node = table.nodes.get(register.node_id)
    if node is not None and node.record.role is not register.role:
        return Refuse(
            "NODE_ID_INVALID",
            f'MS_NODE_ID="{register.node_id}" is the id of a {node.record.role.value}, this is a {register.role.value}. '
            "Give each process its own id.",
        )
    misfit = table.seats[register.role].ids.fault_of(register.node_id, _seat_count(table, register.role))
    return Refuse("NODE_ID_INVALID", f"{misfit}. Give each process its own id.") if misfit else None


def _seat_count(table: SchedulerState, role: m.Role) -> int:
    return table.rules.worker_count if role is m.Role.WORKER else table.rules.server_count


def _applicant(table: SchedulerState, node: Node | None, register: m.Register, now_ms: int) -> Applicant:
    others = table.seats[register.role].taken - (node is not None and table.has_seat(node))
    seats = Seats.FREE if others < _seat_count(table, register.role) else Seats.NONE
    if node is None:
        token = Token.NONE if register.token is None else Token.FOREIGN
        situation = Situation(Held.UNKNOWN, token, Window.OVER, seats)
        return Applicant(
            node_id=register.node_id, situation=situation, silent_ms=0, suspect_left_ms=0, window_left_ms=0
        )
    held = node.held(has_seat=seats is Seats.FREE)
    situation = Situation(held, _token_of(node, register), node.window(now_ms), seats)
    suspect = node.record.state is NodeState.SUSPECT
    return Applicant(
        node_id=register.node_id,
        situation=situation,
        silent_ms=now_ms - node.heard_ms,
        suspect_left_ms=max(1, node.suspect_until_ms - now_ms) if suspect else ASK_AGAIN_MS,
        window_left_ms=max(0, node.window_ends_ms - now_ms),
    )


def _token_of(node: Node, register: m.Register) -> Token:
    record = node.record
    if register.request_id == record.admission_request:
        return Token.SAME  # the answer to its admission was lost on the way: it asks again
    if register.token is None:
        return Token.NONE
    if token_digest(register.token) == record.token_digest:
        return Token.SAME
    return Token.EARLIER if register.incarnation < record.incarnation else Token.FOREIGN


def refuse(
    table: SchedulerState, connection: ConnectionId, register: m.Register, refusal: Refuse
) -> list[SchedulerEffect]:
    """Say no, once in the story; a repeat fills neither log nor store."""
    event = EventRecord(
        kind=EventKind.NODE_REFUSED,
        node_id=register.node_id,
        run=table.job.run,
        reason=f"{refusal.code}: {refusal.reason}",
    )
    refused = m.Refused(
        request_id=register.request_id,
        code=refusal.code,
        reason=refusal.reason,
        retry_after_ms=refusal.retry_after_ms,
        holder_connected=refusal.holder_connected,
    )
    effects: list[SchedulerEffect] = [
        Send(connection, refused),
        CloseConnection(connection, f"refused: {refusal.code}"),
    ]
    if table.note_refusal(register.node_id, refusal.code):
        effects.insert(0, Persist((event,)))
    return effects


def _resume(
    table: SchedulerState, node: Node, received: MessageReceived, now_ms: int
) -> list[SchedulerEffect]:
    register = received.message
    assert isinstance(register, m.Register), "checked by register()"
    effects = _hang_up_older(table, node)
    was_here = node.record.state is NodeState.LIVE
    node.move(NodeState.LIVE)
    node.hangs = False
    if not node.record.host:  # a rebuilt store does not know under which address it was seen
        node.record = msgspec.structs.replace(node.record, host=register.host or received.peer)
    if (
        token_digest(register.token or "") != node.record.token_digest
    ):  # a repeat of the admission: a new secret for the same life
        node.record = msgspec.structs.replace(node.record, token_digest=token_digest(received.fresh_token))
        token = received.fresh_token
    else:
        token = register.token or received.fresh_token
    _connect(table, node, received, now_ms)
    event = table.node_event(
        EventKind.NODE_RESUMED, node, reason="a new connection" if was_here else "it came back"
    )
    admitted = _admitted(table, node, register, token, resumed=True)
    return [
        *effects,
        Persist((node.record, table.life_of(node), event), (Answer(received.connection, admitted),)),
    ]


def _admit(
    table: SchedulerState, node: Node | None, received: MessageReceived, now_ms: int
) -> list[SchedulerEffect]:
    register = received.message
    assert isinstance(register, m.Register), "checked by register()"
    record = NodeRecord(
        node_id=register.node_id,
        role=register.role,
        rank=node.record.rank if node else None,
        incarnation=Incarnation(node.record.incarnation + 1 if node else 1),
        state=NodeState.LIVE,
        token_digest=token_digest(received.fresh_token),
        admission_request=register.request_id,
        host=register.host or received.peer,
        pid=register.pid,
    )
    effects = _hang_up_older(table, node) if node else []
    node = Node(record, heard_ms=now_ms)
    table.put(node)
    _connect(table, node, received, now_ms)
    event = table.node_event(EventKind.NODE_ADMITTED, node)
    admitted = _admitted(table, node, register, received.fresh_token, resumed=False)
    return [*effects, Persist((record, table.life_of(node), event), (Answer(received.connection, admitted),))]


def _connect(table: SchedulerState, node: Node, received: MessageReceived, now_ms: int) -> None:
    node.connection, node.heard_ms, node.told_generation = received.connection, now_ms, 0
    table.speakers[received.connection] = node.record.node_id
    table.forget_refusals(node.record.node_id)


def _hang_up_older(table: SchedulerState, node: Node) -> list[SchedulerEffect]:
    """An older connection of the id speaks for nobody any more."""
    if node.connection is None:
        return []
    table.speakers.pop(node.connection, None)
    older, node.connection = node.connection, None
    return [CloseConnection(older, "replaced by a newer connection")]


def _admitted(
    table: SchedulerState, node: Node, register: m.Register, token: ResumeToken, *, resumed: bool
) -> m.Admitted:
    return m.Admitted(
        request_id=register.request_id,
        incarnation=node.record.incarnation,
        token=token,
        rank=node.record.rank,
        job=table.job.job,
        run=table.job.run,
        scheduler_incarnation=table.job.scheduler_incarnation,
        resumed=resumed,
        committed_step=table.coordinator.committed_step,
    )
