"""What ranks report of their saves: one more checkpoint is complete, one could not be saved. A step is committed when every rank holds it."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.ids import Rank
from recovery.core.policy import rollback
from recovery.core.records import EventKind, Record
from recovery.core.scheduler.checkpoints import copying
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def on_checkpoint_report(
    state: SchedulerState, node: Node, report: m.CheckpointReport, now_ms: int
) -> list[SchedulerEffect]:
    """It holds one more: the step is committed when every rank does."""
    rank, held = node.record.rank, report.checkpoint
    fetching = state.copying.fetching.get(rank) if rank is not None else None
    if rank is not None and fetching is not None and fetching.held.digest == held.digest:
        return [state.answer(node, report.request_id, _brought_back(state, node, rank, held))]
    if rank is None or not rollback.in_lineage(state.of_this_run((held,)), state.generations):
        # Of another run or of a rolled-back suffix: it counts nowhere.
        return [state.answer(node, report.request_id, [])]
    if state.checkpoints.knows(rank, held):
        # Reported again: what is written stays, committed or bad.
        return [state.answer(node, report.request_id, [])]
    is_committed = state.checkpoints.add(rank, held)
    records: list[Record] = [state.checkpoints.record_of(rank, held)]
    if not is_committed:
        positions = state.checkpoints.positions_differ(held.step)
        if positions:
            records.append(
                state.event(
                    EventKind.CHECKPOINT_NOT_COMMON,
                    generation=state.job.generation,
                    step=held.step,
                    reason=f"the ranks have not taken the same batches: {positions}",
                )
            )
        return [state.answer(node, report.request_id, records)]
    is_durable = held.step == state.checkpoints.durable_step
    if is_durable:
        state.disk_commits.committed(now_ms)
    needed = (state.generations[-1].step, state.copying.step)
    records += [*state.checkpoints.committed_records(held.step), *state.checkpoints.retire(*needed)]
    records.append(
        state.event(
            EventKind.CHECKPOINT_COMMITTED,
            generation=state.job.generation,
            step=held.step,
            reason="" if is_durable else "in memory",
        )
    )
    answers = state.to_all(copying.committed(state, held.step))
    return [state.answer(node, report.request_id, records, *answers)]


def _brought_back(state: SchedulerState, node: Node, rank: Rank, held: m.HeldCheckpoint) -> list[Record]:
    """It has fetched what its plan goes back to."""
    del state.copying.fetching[rank]
    fetched = state.node_event(EventKind.CHECKPOINT_FETCHED, node, step=held.step, details=held.path)
    return [state.checkpoints.bring_back(rank, held), fetched]


def on_not_saved(state: SchedulerState, node: Node, failed: m.NotSaved) -> list[SchedulerEffect]:
    """A save or its upload failed: people are told, and it is counted."""
    event = state.node_event(
        EventKind.UPLOAD_FAILED if failed.uploading else EventKind.CHECKPOINT_NOT_SAVED,
        node,
        step=failed.step,
        reason=failed.reason,
        details="in memory" if failed.in_memory else "",
    )
    state.checkpoints.failed_work = state.checkpoints.failed_work.and_one(event)
    return [state.answer(node, failed.request_id, [event])]
