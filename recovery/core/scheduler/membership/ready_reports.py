"""A node can follow a plan: which checkpoints and copies it holds counts for the next one."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.policy import rollback
from recovery.core.policy.ranks import is_in_slot
from recovery.core.policy.retention import INDEXED_STEPS
from recovery.core.records import EventKind, JobState, Record
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.membership import lost_scheduler_store, takeover
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.pending_facts import Report
from recovery.core.scheduler.state import SchedulerState


def on_ready(state: SchedulerState, node: Node, ready: m.Ready) -> None:
    """It can follow a plan. Repeats are welcome: its newest report of what it holds counts."""
    if ready.generation < max(node.sent_generation, node.knew_generation):
        # Sent before it knew the newest plan; it will send it again after that one. Whoever knew an old one says what it held then.
        return
    if _stops(state, node, ready):
        state.facts.fail(f"{node.record.node_id} stopped at step {ready.step}")
    state.facts.reports.append(Report(node, ready))


def _stops(state: SchedulerState, node: Node, ready: m.Ready) -> bool:
    """Has a rank left the generation that the others train in?"""
    is_rank = node.record.role is m.Role.WORKER and not node.is_standby
    return state.job.state is JobState.RUNNING and is_rank and not _is_of_no_rank(node, ready)


def take_report(state: SchedulerState, report: Report, _now_ms: int) -> list[SchedulerEffect]:
    """What it holds counts from now on. Behind the end of the generation that it has left."""
    node, ready = report
    records: list[Record] = []
    if node.is_standby and ready.rank is not None:
        records = takeover.answered(state, node, ready)
    records += _note_copies(state, node, ready)
    if _is_of_no_rank(node, ready):
        return [Persist(tuple(records), (_received(node, ready),))]
    effects: list[SchedulerEffect] = []
    first = node.ready is None or bool(records)
    if first:
        effects += lost_scheduler_store.check_past(state, node, ready)
        if state.store_rebuild.ends_scheduler:
            return effects
    noted = lost_scheduler_store.note_past(state, node, ready)
    node.ready, node.done, node.asked = ready, False, 0
    if state.barrier is not None and node.record.rank is not None:
        state.barrier.note_stop(ready.generation, ready.step)
    left_out = f"{ready.left_out} older checkpoints are not named" if ready.left_out else ""
    event = state.node_event(EventKind.NODE_READY, node, step=ready.step, details=left_out)
    if first:
        records.append(event)
    records += noted
    if node.record.rank is not None and node.record.role is m.Role.WORKER:
        of_this_run = state.held_of_this_run(ready, node.record.rank)
        held = rollback.in_lineage(of_this_run, state.generations)
        records += [
            state.checkpoints.record_of(node.record.rank, checkpoint)
            for checkpoint in sorted(held, key=lambda checkpoint: checkpoint.step)[-INDEXED_STEPS:]
            if not state.checkpoints.knows(node.record.rank, checkpoint)
        ]
        rolled_back = tuple(_rolled_back(checkpoint) for checkpoint in of_this_run if checkpoint not in held)
        state.checkpoints.replace(node.record.rank, held, (*rolled_back, *ready.passed_over))
    records += _passed_over(state, node, ready)
    return [*effects, Persist(tuple(records), (_received(node, ready),))]


def _is_of_no_rank(node: Node, ready: m.Ready) -> bool:
    """Does it list other files than those of the node's rank? A process that has just taken a slot lists those of its own name too."""
    if node.is_standby or (node.took_over and not ready.generation):
        return ready.rank != node.record.rank
    return ready.rank not in (None, node.record.rank)


def _received(node: Node, ready: m.Ready) -> Answer:
    assert node.connection is not None, "it just spoke"
    return Answer(node.connection, m.Received(request_id=ready.request_id))


def _note_copies(state: SchedulerState, node: Node, ready: m.Ready) -> list[Record]:
    """It has looked for copies: the rows that change. What lies at its slot is not its predecessor's any more."""
    state.copying.said_by[node.record.node_id] = node.record.incarnation
    rows: list[Record] = [
        *state.checkpoints.copies.replace(node.record.node_id, state.copies_of_this_run(ready))
    ]
    if node.replaces:
        reason = f"{node.record.node_id} has its slot now"
        for other in state.nodes.values():
            name = other.record.node_id
            if other is not node and is_in_slot(name, node.place) and other.connection is None:
                rows += state.checkpoints.copies.replace(name, (), reason)
    return rows


def _rolled_back(held: m.HeldCheckpoint) -> m.Skipped:
    reason = f"it was written in generation {held.generation}, which a later plan rolled back"
    return m.Skipped(path=held.path, reason=reason, step=held.step)


def _passed_over(state: SchedulerState, node: Node, ready: m.Ready) -> list[Record]:
    """What it could not take, as events; what was reported before is no news."""
    before, node.passed_over = node.passed_over, frozenset(ready.passed_over)
    found: list[Record] = [
        state.node_event(
            EventKind.CHECKPOINT_PASSED_OVER,
            node,
            step=skipped.step or None,
            reason=skipped.reason,
            details=skipped.path,
        )
        for skipped in ready.passed_over
        if skipped not in before
    ]
    if found and ready.passed_over_more:
        reason = f"{ready.passed_over_more} more files; the log of {node.record.node_id} names them"
        found.append(state.node_event(EventKind.CHECKPOINT_PASSED_OVER, node, reason=reason))
    return found
