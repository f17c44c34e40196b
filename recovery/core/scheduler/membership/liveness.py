"""Which nodes are here: what a heartbeat, a closed connection, an exit and a timer mean for a node.

LIVE -> SUSPECT when its connection closes -> LOST when it does not come back in time; LIVE -> LOST when it is silent for its lease.
"""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.causes import UNEXPLAINED, Cause
from recovery.core.effects import Log, Persist
from recovery.core.records import STARTS_AGAIN, EventKind, JobState, NodeState, Record
from recovery.core.scheduler import job_end
from recovery.core.scheduler.effects import (
    CloseConnection,
    GraceTimer,
    LeaseTimer,
    SchedulerEffect,
    Send,
    SetTimer,
    WindowsTimer,
)
from recovery.core.scheduler.membership import death_proof, slot_choice
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pauses import was_paused
from recovery.core.scheduler.pending_facts import GivenUp
from recovery.core.scheduler.state import SchedulerState
from recovery.core.scheduler.stimuli import ConnectionLost, MessageReceived, ProcessGone

RETURNS_AT_ONCE = "its id may return at once (MS_REJOIN=proof)"

WINDOW_NOTE_MS = 1_000
"""How often what is left of open rejoin windows is written down: so much can a scheduler restart add to one, at most."""


def on_heartbeat(state: SchedulerState, node: Node, beat: m.Heartbeat) -> list[SchedulerEffect]:
    """It is here, and at this step."""
    assert node.connection is not None, "it just spoke"
    if beat.generation == state.job.generation:
        node.told_step(beat.step)
        node.newest_beat, node.step_unknown = beat, False
    return [Send(node.connection, m.HeartbeatAck(sequence=beat.sequence))]


def on_connection_lost(state: SchedulerState, lost: ConnectionLost, now_ms: int) -> list[SchedulerEffect]:
    """A connection closed: its node is suspect, unless it said why it ends."""
    node = state.speaker(lost.connection)
    state.waiting.forget(lost.connection)
    if node is None:
        # It was an earlier incarnation's, or nobody's.
        return []
    state.disconnect(node)
    if state.job_ended:
        return job_end.on_disconnected(state, node, now_ms)
    if node.record.state is not NodeState.LIVE:
        return []
    # The kernel that closed the socket was heard just now.
    node.heard_ms = now_ms
    if node.record.reason:
        # Why it ends is known (its own code raised, its launcher saw it end): there is nothing to wait for.
        return _gone(state, node, node.record.reason, now_ms)
    node.suspect_until_ms = now_ms + state.rules.reconnect_grace_ms
    record = node.move(NodeState.SUSPECT, reason=lost.reason, cause=Cause.CONNECTION_LOST)
    # A node that waits for the next plan already has started again.
    node.is_restarting = node.starts_again and state.job.state is JobState.INTERRUPTED and node.ready is None
    return [
        Persist((record, state.node_event(EventKind.NODE_SUSPECTED, node, reason=lost.reason))),
        SetTimer(GraceTimer(record.node_id), node.suspect_until_ms),
        *death_proof.watch(state, node),
    ]


def on_process_gone(state: SchedulerState, gone: ProcessGone, now_ms: int) -> list[SchedulerEffect]:
    """A process of this host has ended, for certain. A node that is connected is not lost by that: its connection tells."""
    node = state.nodes.get(gone.node_id)
    if state.job_ended or node is None or node.record.incarnation != gone.incarnation:
        return []
    if not death_proof.may_still_matter(state, node, now_ms):
        return []
    node.proven_dead, node.is_restarting = True, False
    reason = death_proof.has_ended(node)
    if node.record.state is NodeState.SUSPECT:
        return _gone(state, node, reason, now_ms, Cause.PROCESS_ENDED)
    return _learn(state, node, reason, now_ms, Cause.PROCESS_ENDED)


def on_leave(state: SchedulerState, node: Node, leave: m.Leave) -> list[SchedulerEffect]:
    """It goes on purpose: its id is free at once, and a worker's generation is over."""
    state.waiting.note_free(node.record.node_id, node.slot)
    record = node.move(NodeState.LEFT, reason=leave.reason)
    event = state.node_event(EventKind.NODE_LEFT, node, reason=leave.reason)
    if record.role is m.Role.WORKER and not node.is_standby:
        state.facts.fail(f"{record.node_id} left: {leave.reason}")
    return [state.answer(node, leave.request_id, [record, event])]


def on_exited(
    state: SchedulerState, received: MessageReceived, exited: m.Exited, now_ms: int
) -> list[SchedulerEffect]:
    """A launcher saw a process end. It speaks on a connection of its own, which has served its purpose."""
    node, connection = state.nodes.get(exited.node_id), received.connection
    if node is not None and not death_proof.may_report(node, received.peer):
        reason = f"it reports the end of {exited.node_id}, whose process is not of its host"
        return [CloseConnection(connection, reason, is_fault=True)]
    return [*_exit_seen(state, exited, now_ms), CloseConnection(connection, "received")]


def _exit_seen(state: SchedulerState, exited: m.Exited, now_ms: int) -> list[SchedulerEffect]:
    """Once the connection of a process that ended is closed too, there is nothing to wait for.

    While the connection is open the reason is only kept: a wrong report takes nobody's place away.
    """
    node = state.nodes.get(exited.node_id)
    if node is None:
        return _give_up_unknown(state, exited, now_ms) if exited.gives_up and not state.job_ended else []
    if death_proof.is_of_another(node, exited):
        return _learn_late(state, node.earlier, exited)
    if state.job_ended:
        return _learn_late(state, node, exited)
    cause = Cause.PROCESS_ENDED if exited.found else Cause.OTHER
    node.given_up, node.proven_dead = exited.gives_up, death_proof.proves(node, exited)
    if node.record.state is NodeState.LIVE:
        known = node.record.reason or ("" if exited.found else exited.reason)
        node.record = msgspec.structs.replace(node.record, reason=known)
        return []
    node.is_restarting = False
    if node.record.state is NodeState.SUSPECT:
        return _gone(state, node, exited.reason, now_ms, cause)
    effects = _learn(state, node, exited.reason, now_ms, cause) if node.record.state is NodeState.LOST else []
    if exited.gives_up:
        state.facts.given_up.append(GivenUp(node, node.record.reason))
    return effects


def _learn(
    state: SchedulerState, node: Node, reason: str, now_ms: int, cause: Cause = Cause.OTHER
) -> list[SchedulerEffect]:
    """More is known of a node that is lost: that its process has ended, or how."""
    records = [] if cause in UNEXPLAINED else _explained(state, node, reason)
    if records and state.job.state is JobState.INTERRUPTED and state.job.about == node.record.node_id:
        # Where the loss ended the generation, its end is explained by what is known now.
        records += state.name_cause(
            f"{node.record.node_id} lost: {reason}", state.job.cause, node.record.node_id
        )
    details = ""
    if death_proof.end_window(state, node, now_ms):
        node.record = msgspec.structs.replace(node.record, rejoin_left_ms=0)
        records.append(node.record)
        state.waiting.note_free(node.record.node_id, node.slot)
        details = RETURNS_AT_ONCE
    if not records:
        return []
    event = state.node_event(EventKind.PROCESS_ENDED, node, reason=reason, details=details)
    return [Persist((*records, event)), *death_proof.end_watch(node)]


def _learn_late(state: SchedulerState, node: Node | None, exited: m.Exited) -> list[SchedulerEffect]:
    """How a process ended, when its id has its next process or the job has ended: nothing follows from it, and it is written down once."""
    if node is None or exited.found or death_proof.is_of_another(node, exited):
        return []
    records = _explained(state, node, exited.reason)
    event = state.node_event(EventKind.PROCESS_ENDED, node, reason=exited.reason)
    return [Persist((*records, event))] if records else []


def _explained(state: SchedulerState, node: Node, reason: str) -> list[Record]:
    """Its parent, which waited for it, knows how it ended: the rows to persist; none, where that was known."""
    if node.record.cause not in UNEXPLAINED:
        return []
    node.record = msgspec.structs.replace(node.record, reason=reason, cause=Cause.OTHER)
    # The id's own row is its present incarnation's.
    own = [node.record] if state.nodes[node.record.node_id] is node else []
    return [*own, state.incarnation_record(node, ended=reason)]


def _gone(
    state: SchedulerState, node: Node, reason: str, now_ms: int, cause: Cause = Cause.OTHER
) -> list[SchedulerEffect]:
    """It has ended for certain, and this is why."""
    if node.given_up:
        state.facts.given_up.append(GivenUp(node, reason))
    return _lose(state, node, reason, now_ms, cause)


def give_up(state: SchedulerState, given_up: GivenUp, now_ms: int) -> list[SchedulerEffect]:
    """It is not started again: the job cannot go on, unless nobody needs it, or a standby takes its rank."""
    node = given_up.node
    if state.job_ended:
        return []
    if node.is_standby:
        # It had no rank itself, and may have been the last one that came for one.
        awaited = slot_choice.wanted_slot(state, node.record.node_id, node.replaces)
        return [] if awaited is None else give_up(state, given_up._replace(node=awaited), now_ms)
    if node.record.role is m.Role.WORKER and state.slots[m.Role.WORKER].standbys:
        state.vacancies.pending_failure.add(node.record.node_id)
        return []
    return _fail(state, f"{node.record.node_id}: {given_up.reason}", now_ms)


def _give_up_unknown(state: SchedulerState, exited: m.Exited, now_ms: int) -> list[SchedulerEffect]:
    """It was never here, and is not started again: the job cannot begin without it, or go on without whose rank it came for."""
    awaited = slot_choice.wanted_slot(state, exited.node_id)
    if awaited is not None:
        state.facts.given_up.append(GivenUp(awaited, exited.reason))
        return []
    if state.builds_again and state.rules.standby_count:
        text = f"{exited.node_id}: {exited.reason}; it is not started again, and a standby may have its rank: the job waits"
        return [Log("not_started_again", text, warning=True)]
    if state.job.state is not JobState.FORMING:
        return []
    what = f"{exited.node_id}: {exited.reason}"
    if exited.standby:
        text = f"{what}; it is not started again. It was a standby, so the job begins without it"
        return [Log("not_started_again", text, warning=True)]
    return _fail(state, what, now_ms)


def _fail(state: SchedulerState, what: str, now_ms: int) -> list[SchedulerEffect]:
    return job_end.end(state, m.JobOutcome.JOB_FAILED, f"{what}; it is not started again", now_ms)


def _lose(
    state: SchedulerState, node: Node, reason: str, now_ms: int, cause: Cause = Cause.OTHER
) -> list[SchedulerEffect]:
    """A node is lost: its generation is over and its id is refused until the window ends, counted from when it was last heard."""
    node.window_ends_ms = node.heard_ms + state.rules.rejoin_window_ms
    details = STARTS_AGAIN if node.is_restarting else ""
    if death_proof.end_window(state, node, now_ms):
        details = RETURNS_AT_ONCE
    left_ms = max(0, node.window_ends_ms - now_ms)
    record = node.move(NodeState.LOST, reason=reason, cause=cause, rejoin_left_ms=left_ms)
    node.ready, node.done = None, False
    state.waiting.note_free(record.node_id, node.slot)
    connection = state.disconnect(node)
    effects: list[SchedulerEffect] = []
    if connection is not None:
        effects.append(CloseConnection(connection, f"lost: {reason}"))
    event = state.node_event(EventKind.NODE_LOST, node, step=record.step, reason=reason, details=details)
    effects += [
        Persist((record, state.incarnation_record(node, ended=reason), event)),
        SetTimer(WindowsTimer(), now_ms + WINDOW_NOTE_MS),
        *_watch_lost(state, node, now_ms),
    ]
    # Without recovery any loss ends the job, a server's too. A standby takes no part in a generation.
    if (record.role is m.Role.WORKER and not node.is_standby) or not state.rules.recovery_enabled:
        state.facts.fail(
            f"{record.node_id} lost: {reason}",
            crash_loop=state.crash_loop if node.is_restarting else None,
            cause=Cause.PROGRAM_RESTARTED if node.is_restarting else Cause.NODE_LOST,
            about=record.node_id,
        )
    return effects


def _watch_lost(state: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    """With MS_REJOIN=proof the end of a lost node's process ends its window too; else nothing follows from it any more."""
    if not death_proof.may_still_matter(state, node, now_ms):
        return death_proof.end_watch(node)
    return [] if node.is_watched else death_proof.watch(state, node)


def on_grace_over(state: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    """A suspect node has not come back: it is lost, unless it was this process that was paused."""
    if node.record.state is not NodeState.SUSPECT or now_ms < node.suspect_until_ms:
        return []
    if was_paused(node.suspect_until_ms, now_ms):
        node.suspect_until_ms = now_ms + state.rules.reconnect_grace_ms
        return [SetTimer(GraceTimer(node.record.node_id), node.suspect_until_ms)]
    return [
        *_lose(state, node, node.record.reason, now_ms, node.record.cause),
        *_keep_rank(state, node, now_ms),
    ]


def _keep_rank(state: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    """Its rank is offered to nobody for as long as its lease, unless its end is reported: its program makes its imports again."""
    if not node.keeps_rank(now_ms, state.rules.lease_ms):
        return []
    text = f"{node.record.node_id} starts its program again, so no standby is offered its rank"
    limit = f"within its lease (MS_NODE_TIMEOUT={state.rules.lease_ms / 1000:g})"
    # When the timer is due, slots are looked at as after every stimulus.
    due = SetTimer(GraceTimer(node.record.node_id), node.heard_ms + state.rules.lease_ms)
    return [Log("rank_kept", f"{text} {limit}"), due]


def on_lease_due(state: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    """A live node must have been heard within its lease."""
    if node.record.state is not NodeState.LIVE:
        return []
    if was_paused(node.lease_check_ms, now_ms):
        # This process was paused itself: what the node sent meanwhile is not read yet.
        node.heard_ms = now_ms
    silent_ms = now_ms - node.heard_ms
    if silent_ms < state.rules.lease_ms:
        return [next_lease_check(state, node)]
    reason = f"silent for {silent_ms / 1000:.1f} s, its lease (MS_NODE_TIMEOUT) is {state.rules.lease_ms / 1000:g} s"
    node.hangs = True
    return _lose(state, node, reason, now_ms)


def next_lease_check(state: SchedulerState, node: Node) -> SetTimer:
    """When to look again whether the node was heard within its lease."""
    node.lease_check_ms = node.heard_ms + state.rules.lease_ms
    return SetTimer(LeaseTimer(node.record.node_id), node.lease_check_ms)


def on_windows_due(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Write down what is left of each open window, so that a restarted scheduler applies just that."""
    noted: list[Record] = []
    for node in state.nodes.values():
        left_ms = max(0, node.window_ends_ms - now_ms)
        if node.record.state is NodeState.LOST and node.record.rejoin_left_ms != left_ms:
            node.record = msgspec.structs.replace(node.record, rejoin_left_ms=left_ms)
            noted.append(node.record)
    return [Persist(tuple(noted)), SetTimer(WindowsTimer(), now_ms + WINDOW_NOTE_MS)] if noted else []
