"""What ranks say of their checkpoints: which ones they hold, one more that is complete, one that is not usable. Functions over the table."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.checkpoints import BOOKED_STEPS, to_record
from recovery.core.effects import Answer, Persist
from recovery.core.policy import rollback
from recovery.core.records import CheckpointState, EventKind, JobState, Record
from recovery.core.scheduler import generations, lost_store
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def on_ready(table: SchedulerState, node: Node, ready: m.Ready, now_ms: int) -> list[SchedulerEffect]:
    """It can follow a plan. Repeats are welcome: the newest word on what it holds counts."""
    assert node.connection is not None, "it just spoke"
    if ready.generation < node.told_generation:
        return []  # sent before it knew the newest plan; it will say it again after that one
    effects: list[SchedulerEffect] = []
    if table.job.state is JobState.RUNNING and node.record.role is m.Role.WORKER:
        effects += generations.interrupt(table, f"{node.record.node_id} stopped at step {ready.step}", now_ms)
    first = node.ready is None
    if first:
        effects += lost_store.hear(table, node, ready)
        if table.is_over:
            return effects
    node.ready, node.done = ready, False
    left_out = f"{ready.left_out} older checkpoints are not told" if ready.left_out else ""
    event = table.node_event(EventKind.NODE_READY, node, step=ready.step, details=left_out)
    records: list[Record] = [event] if first else []
    if node.record.rank is not None and node.record.role is m.Role.WORKER:
        of_this_run = table.held_of_this_run(ready)
        held = rollback.in_lineage(of_this_run, table.generations)
        records += [
            to_record(node.record.rank, checkpoint, CheckpointState.PUBLISHED)
            for checkpoint in sorted(held, key=lambda one: one.step)[-BOOKED_STEPS:]
            if not table.coordinator.knows(node.record.rank, checkpoint)
        ]
        rolled_back = tuple(_rolled_back(one) for one in of_this_run if one not in held)
        table.coordinator.replace(node.record.rank, held, (*rolled_back, *ready.passed_over))
    records += _passed_over(table, node, ready)
    effects.append(
        Persist(tuple(records), (Answer(node.connection, m.Received(request_id=ready.request_id)),))
    )
    return effects + generations.try_open(table, now_ms)


def _rolled_back(held: m.HeldCheckpoint) -> m.PassedOver:
    reason = f"it was written in generation {held.generation}, which a later plan rolled back"
    return m.PassedOver(path=held.path, reason=reason, step=held.step)


def _passed_over(table: SchedulerState, node: Node, ready: m.Ready) -> list[Record]:
    """What it could not take, as lines of the story; what was said before is no news."""
    before, node.passed_over = node.passed_over, frozenset(ready.passed_over)
    found: list[Record] = [
        table.node_event(
            EventKind.CHECKPOINT_PASSED_OVER, node, step=one.step or None, reason=one.reason, details=one.path
        )
        for one in ready.passed_over
        if one not in before
    ]
    if found and ready.passed_over_more:
        reason = f"{ready.passed_over_more} more files; the log of {node.record.node_id} names them"
        found.append(table.node_event(EventKind.CHECKPOINT_PASSED_OVER, node, reason=reason))
    return found


def on_checkpoint_report(
    table: SchedulerState, node: Node, report: m.CheckpointReport, now_ms: int
) -> list[SchedulerEffect]:
    """It holds one more: the step is committed when every rank does."""
    rank, held = node.record.rank, report.checkpoint
    if rank is None or not rollback.in_lineage(table.of_this_run((held,)), table.generations):
        return [
            table.answer(node, report.request_id, [])
        ]  # of another run or of a rolled-back suffix: it counts nowhere
    if table.coordinator.knows(rank, held):
        return [
            table.answer(node, report.request_id, [])
        ]  # told again: what is written stays, committed or bad
    committed = table.coordinator.add(rank, held)
    records: list[Record] = [to_record(rank, held, CheckpointState.PUBLISHED)]
    if not committed:
        return [table.answer(node, report.request_id, records)]
    step = table.coordinator.committed_step
    records += [*table.coordinator.committed_records(), *table.coordinator.retire()]
    records.append(table.event(EventKind.CHECKPOINT_COMMITTED, generation=table.job.generation, step=step))
    told = table.to_all(m.Committed(run=table.job.run, step=step))
    return [table.answer(node, report.request_id, records, *told)]


def on_checkpoint_invalid(
    table: SchedulerState, node: Node, bad: m.CheckpointInvalid, now_ms: int
) -> list[SchedulerEffect]:
    """A file of the plan does not verify: it is never used again, and the plan goes back further."""
    if node.record.rank is None or bad.generation != table.job.generation:
        return [
            table.answer(node, bad.request_id, [])
        ]  # of a plan that is over: the newer one does not go there
    checkpoint = table.coordinator.reject(node.record.rank, bad.step, bad.reason)
    records: list[Record] = [
        table.node_event(
            EventKind.CHECKPOINT_INVALID, node, step=bad.step, reason=bad.reason, details=bad.path
        )
    ]
    if checkpoint is not None:
        records.append(to_record(node.record.rank, checkpoint, CheckpointState.INVALID, bad.reason))
    reason = f"the checkpoint of step {bad.step} is not usable on {node.record.node_id}: {bad.reason}"
    return [table.answer(node, bad.request_id, records), *generations.interrupt(table, reason, now_ms)]
