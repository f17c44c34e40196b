"""Who is here: what a closed connection and a timer mean for a node. Functions over the table.

LIVE -> SUSPECT when its connection closes -> LOST when it does not come back in time; LIVE -> LOST when it is silent for its lease.
"""

from __future__ import annotations

import msgspec

from recovery.core.effects import Persist, SetTimer
from recovery.core.ids import NodeId
from recovery.core.messages import Exited, JobOutcome
from recovery.core.records import EventKind, JobState, NodeState, Record
from recovery.core.scheduler import generations
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import STANDSTILL_MS, WINDOW_NOTE_MS, SchedulerState
from recovery.core.scheduler.stimuli import ConnectionLost, TimerFired


def connection_lost(table: SchedulerState, lost: ConnectionLost, now_ms: int) -> list[SchedulerEffect]:
    """A connection closed: its node is suspect, unless it said why it ends."""
    node = table.speaker(lost.connection)
    table.speakers.pop(lost.connection, None)
    if node is None:
        return []  # a socket of an earlier life, or of nobody: it speaks for nobody
    node.connection = None
    if table.ended:
        return _hung_up(table, node, now_ms)
    if node.record.state is not NodeState.LIVE:
        return []
    node.heard_ms = now_ms  # the kernel that closed the socket was heard just now
    if node.record.reason:  # why it ends is known already (its own code raised, its launcher saw it): there is nothing to wait for
        return _gone(table, node, node.record.reason, now_ms)
    node.suspect_until_ms = now_ms + table.rules.reconnect_grace_ms
    record = node.move(NodeState.SUSPECT, reason=lost.reason)
    return [
        Persist((record, table.node_event(EventKind.NODE_SUSPECTED, node, reason=lost.reason))),
        SetTimer(f"grace:{record.node_id}", node.suspect_until_ms),
    ]


def exit_seen(table: SchedulerState, exited: Exited, now_ms: int) -> list[SchedulerEffect]:
    """A launcher saw a node's process end, and how: once its connection is closed too, there is nothing to wait for.

    While the connection is open the word is only kept: whoever says it wrongly takes nobody's place away.
    """
    node = table.nodes.get(exited.node_id)
    if table.ended:
        return []
    if node is None:
        never_came = exited.gives_up and table.job.state is JobState.FORMING
        return _given_up(table, f"{exited.node_id}: {exited.reason}", now_ms) if never_came else []
    if node.record.pid != exited.pid:
        return []
    node.given_up = exited.gives_up
    if node.record.state is NodeState.LIVE:
        node.record = msgspec.structs.replace(node.record, reason=node.record.reason or exited.reason)
        return []
    if node.record.state is NodeState.SUSPECT:
        return _gone(table, node, exited.reason, now_ms)
    return _given_up(table, f"{exited.node_id}: {node.record.reason}", now_ms) if exited.gives_up else []


def _gone(table: SchedulerState, node: Node, reason: str, now_ms: int) -> list[SchedulerEffect]:
    """It has ended for certain, and this is why."""
    effects = generations.lose(table, node, reason, now_ms)
    if node.given_up and not table.ended:
        effects += _given_up(table, f"{node.record.node_id}: {reason}", now_ms)
    return effects


def _given_up(table: SchedulerState, what: str, now_ms: int) -> list[SchedulerEffect]:
    return generations.end(table, JobOutcome.JOB_FAILED, f"{what}; it is not started again", now_ms)


def _hung_up(table: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    """A node leaves an ended job, or was cut off before it heard so and asks again within the reconnect grace.

    Without recovery a failed job ends everywhere within a second, and half of that went by until the loss was certain: the
    scheduler then waits for nobody. Who was cut off at that very moment finds no scheduler any more and fails all the same.
    """
    effects: list[SchedulerEffect] = [Persist(tuple(generations.part(table, [node])))]
    if not any(
        other.connection is not None or other.record.state is NodeState.SUSPECT
        for other in table.nodes.values()
    ):
        at_once = table.job.state is JobState.FAILED and not table.rules.recovery_enabled
        effects.append(SetTimer("farewell", now_ms + (0 if at_once else table.rules.reconnect_grace_ms)))
    return effects


def timer_fired(table: SchedulerState, fired: TimerFired, now_ms: int) -> list[SchedulerEffect]:
    """A timer is due. The table says whether it still means anything."""
    what, _, name = fired.key.partition(":")
    if what == "farewell":
        return _farewell_due(table)
    if table.ended:
        return []
    if what == "windows":
        return _note_windows(table, now_ms)
    if what == "topology":
        return generations.full_house_missed(table, now_ms)
    node = table.nodes[NodeId(name)]
    if what == "grace" and node.record.state is NodeState.SUSPECT and now_ms >= node.suspect_until_ms:
        if now_ms - node.suspect_until_ms >= STANDSTILL_MS:
            node.suspect_until_ms = now_ms + table.rules.reconnect_grace_ms
            return [SetTimer(fired.key, node.suspect_until_ms)]
        return generations.lose(table, node, node.record.reason, now_ms)
    if what == "lease" and node.record.state is NodeState.LIVE:
        return _check_lease(table, node, now_ms)
    return []


def _farewell_due(table: SchedulerState) -> list[SchedulerEffect]:
    """Who has not come to hear the end by now does not come back: its id is free for the next run."""
    assert table.ended, "it is set by the end, and no run begins in the life of an ended scheduler"
    records = tuple(generations.part(table, list(table.nodes.values())))
    return [Persist(records, (generations.farewell(table),))]


def _check_lease(table: SchedulerState, node: Node, now_ms: int) -> list[SchedulerEffect]:
    if now_ms - node.lease_check_ms >= STANDSTILL_MS:
        node.heard_ms = (
            now_ms  # this process stood still itself: what the node said meanwhile is not read yet
        )
    silent_ms = now_ms - node.heard_ms
    if silent_ms < table.rules.lease_ms:
        return [next_lease_check(table, node)]
    reason = f"silent for {silent_ms / 1000:.1f} s, its lease (MS_NODE_TIMEOUT) is {table.rules.lease_ms / 1000:g} s"
    node.hangs = True
    return generations.lose(table, node, reason, now_ms)


def next_lease_check(table: SchedulerState, node: Node) -> SetTimer:
    """When to look again whether the node was heard within its lease."""
    node.lease_check_ms = node.heard_ms + table.rules.lease_ms
    return SetTimer(f"lease:{node.record.node_id}", node.lease_check_ms)


def _note_windows(table: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """Write down what is left of each open window, so that a restarted scheduler applies just that."""
    noted: list[Record] = []
    for node in table.nodes.values():
        left_ms = max(0, node.window_ends_ms - now_ms)
        if node.record.state is NodeState.LOST and node.record.rejoin_left_ms != left_ms:
            node.record = msgspec.structs.replace(node.record, rejoin_left_ms=left_ms)
            noted.append(node.record)
    return [Persist(tuple(noted)), SetTimer("windows", now_ms + WINDOW_NOTE_MS)] if noted else []
