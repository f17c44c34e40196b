"""What is known of the ends of processes. A proof takes a place away only from a process that is not connected, and only of the very process.

The scheduler watches processes of its own host, launchers those of theirs. A process id alone proves nothing: it is used again, and
means another process on another boot and in another pid namespace.
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.records import NodeState, ProcessRecord, Record
from recovery.core.scheduler.effects import EndWatch, SchedulerEffect, WatchProcess
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def watch(state: SchedulerState, node: Node) -> list[SchedulerEffect]:
    """Have the end of its process reported, from when it is not connected on. Without recovery nothing would follow but the end."""
    if node.process is None or not state.rules.recovery_enabled:
        return []
    node.is_watched = True
    record = node.record
    host = node.came_from or record.host
    return [WatchProcess(record.node_id, record.incarnation, record.pid, node.process, host)]


def watch_again(state: SchedulerState) -> list[SchedulerEffect]:
    """Have the ends that are watched for reported under the numbers that incarnations have now."""
    watched = [node for node in state.nodes.values() if node.is_watched]
    return [effect for node in watched for effect in watch(state, node)]


def end_watch(node: Node) -> list[SchedulerEffect]:
    """It was heard again, or what follows from its end has followed."""
    if not node.is_watched:
        return []
    node.is_watched = False
    return [EndWatch(node.record.node_id)]


def has_ended(node: Node) -> str:
    """How a loss is explained of which nothing but the proof is known."""
    return f"its process (pid {node.record.pid}) has ended"


def is_of_another(node: Node, exited: m.Exited) -> bool:
    """Does a report speak of another process than the node's current incarnation?"""
    if exited.pid != node.record.pid:
        return True
    return exited.process is not None and node.process is not None and exited.process != node.process


def may_report(node: Node, peer: str) -> bool:
    """May a launcher say how this node's process ended? One of the same host, whatever it names.

    The host is that of the address which the node itself came from, through the same network. Which process it is, every launcher is told; and
    a machine that was copied while it ran has the boot, the pid namespace and the numbers of processes of the other.
    """
    hosts = {node.came_from, node.record.host} - {""}
    return not hosts or peer in hosts


def proves(node: Node, exited: m.Exited) -> bool:
    """Does a report name the very process of the current incarnation?"""
    return exited.process is not None and exited.process == node.process


def end_window(state: SchedulerState, node: Node, now_ms: int) -> bool:
    """With MS_REJOIN=proof a node that is proven dead may return at once. Gives whether that ends a window that was open."""
    if not (node.proven_dead and state.rules.rejoin_on_proof) or node.window_ends_ms <= now_ms:
        return False
    node.window_ends_ms = now_ms
    return True


def may_still_matter(state: SchedulerState, node: Node, now_ms: int) -> bool:
    """Would it change anything to learn that its process has ended?"""
    if node.record.state is NodeState.SUSPECT or node.is_restarting:
        return True
    is_refused = node.record.state is NodeState.LOST and now_ms < node.window_ends_ms
    return is_refused and state.rules.rejoin_on_proof


def note_process(node: Node, process: m.ProcessIdentity | None) -> list[Record]:
    """It said which process it is, or could not. Gives the row where that is news."""
    if process is None or process == node.process:
        return []
    node.process = process
    return process_records(node)


def process_records(node: Node) -> list[Record]:
    """The row that says which process a node's current incarnation is, where that is known."""
    if node.process is None:
        return []
    return [
        ProcessRecord(
            node_id=node.record.node_id,
            incarnation=node.record.incarnation,
            boot_id=node.process.boot_id,
            pid_namespace=node.process.pid_namespace,
            start_ticks=node.process.start_ticks,
        )
    ]


def identity_of(record: ProcessRecord) -> m.ProcessIdentity:
    """The same as the process said it."""
    return m.ProcessIdentity(
        boot_id=record.boot_id, pid_namespace=record.pid_namespace, start_ticks=record.start_ticks
    )
