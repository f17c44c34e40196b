"""A process registers: it is let in or refused, and once it is in it is brought to where the job stands."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Answer, Log, Persist
from recovery.core.records import EventKind, JobState, Record
from recovery.core.scheduler import job_end
from recovery.core.scheduler.effects import CloseConnection, SchedulerEffect, SetTimer, WaitingTimer
from recovery.core.scheduler.membership import liveness, lost_scheduler_store
from recovery.core.scheduler.membership.admission import admit_or_refuse, job_fault_of, refusal_event
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pending_facts import Arrival
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import MessageReceived


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
    state.waiting.forget(connection)
    other = lost_scheduler_store.of_another_job(state, received, register, now_ms)
    if other is not None:
        return other
    if state.job_ended and job_fault_of(state, register) is None:
        return _too_late(state, received, register, now_ms)
    effects = admit_or_refuse(state, received, register, now_ms)
    node = state.speaker(connection)
    if node is None:
        # It was refused.
        return effects
    if node.differs:
        event = state.node_event(EventKind.PROGRAM_DIFFERS, node, reason=node.differs)
        effects += [Persist((event,)), Log("program_differs", node.differs, warning=True)]
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


def look_again(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """A window is over for which somebody waits."""
    state.waiting.note_due(now_ms)
    later_ms = state.waiting.next_due_after(now_ms)
    return [] if later_ms is None else [SetTimer(WaitingTimer(), later_ms)]


def _too_late(
    state: SchedulerState, received: MessageReceived, register: m.Register, now_ms: int
) -> list[SchedulerEffect]:
    """The job is over and so is this scheduler, in a moment: a run begun now would wait for those that were sent the end.

    Only a scheduler that starts begins the next run. A process that comes now is sent the end, and disconnects when it has it.
    """
    node = state.nodes.get(register.node_id)
    was_in = bool(register.generation) or register.token is not None
    missed_it = node is not None and not job_end.has_left(node)
    records: list[Record] = job_end.leave(state, [node] if node is not None else [])
    if not was_in and not missed_it:
        reason = (
            f"JOB_ENDED: it came when the job had ended ({state.job.reason}); the next scheduler takes it in"
        )
        event = refusal_event(state, received, register, reason, now_ms)
        records += [event] if event is not None else []
    return [Persist(tuple(records), (Answer(received.connection, job_end.job_ended(state)),))]
