"""What ranks report of their checkpoints, and holders of copies: one more is complete, one could not be saved or fetched.

A step is committed when every rank holds it.
"""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.copy_messages import CopyFailed, CopyReport, FetchFault
from recovery.core.failed_work import FROM_ANOTHER
from recovery.core.ids import Rank
from recovery.core.policy import rollback
from recovery.core.records import EventKind, EventRecord, Record
from recovery.core.scheduler.checkpoints import copying, replicas, uploading
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
    differing: list[Record] = []
    if (found := replicas.find_difference(state, rank, report)) is not None:
        differing, counts = replicas.tell(state, found, rank, held)
        if not counts:
            return [state.answer(node, report.request_id, differing)]
    is_committed = state.checkpoints.add(rank, held)
    records: list[Record] = [*differing, state.checkpoints.record_of(rank, held)]
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
    needed = (state.generations[-1].step, state.copying.step, state.uploading.step)
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
    skipped = uploading.committed(state, held.step) if is_durable else []
    uncompared = replicas.tell_uncompared(state, held.step)
    return [*skipped, *uncompared, state.answer(node, report.request_id, records, *answers)]


def _brought_back(state: SchedulerState, node: Node, rank: Rank, held: m.HeldCheckpoint) -> list[Record]:
    """It has fetched what its plan goes back to."""
    del state.copying.fetching[rank]
    state.uploading.rescan = True
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
    if failed.uploading:
        state.uploading.failure = failed.reason
    return [state.answer(node, failed.request_id, [event])]


def on_copy_report(state: SchedulerState, node: Node, report: CopyReport) -> list[SchedulerEffect]:
    """A copy is there."""
    held, name = report.checkpoint, node.record.node_id
    if not rollback.in_lineage(state.of_this_run((held,)), state.generations):
        # Of another run or of a rolled-back suffix: it counts nowhere.
        return [state.answer(node, report.request_id, [])]
    records: list[Record] = [state.checkpoints.copies.add(name, report.rank, held)]
    if (report.rank, name) not in state.copying.pending or held.step != state.copying.step:
        return [state.answer(node, report.request_id, records)]
    more, answers = copying.note_outcome(state, report.rank, name, failed=False)
    return [state.answer(node, report.request_id, [*records, *more], *answers)]


def on_copy_failed(state: SchedulerState, node: Node, failed: CopyFailed) -> list[SchedulerEffect]:
    """A copy did not come from the nodes that are named. What is damaged there is never used again."""
    if failed.run != state.job.run:
        return [state.answer(node, failed.request_id, [])]
    event = _event(state, node, failed)
    state.checkpoints.failed_work = state.checkpoints.failed_work.and_one(event)
    records: list[Record] = [event]
    records += [
        record for fault in failed.failures if fault.damaged for record in _reject(state, failed, fault)
    ]
    if failed.generation:
        return _of_plan(state, node, failed, records)
    key = (failed.rank, node.record.node_id)
    if not failed.gives_up or key not in state.copying.pending or failed.step != state.copying.step:
        return [state.answer(node, failed.request_id, records)]
    records += _without_memory(state, node, failed.reason)
    more, answers = copying.note_outcome(state, *key, failed=True)
    return [state.answer(node, failed.request_id, [*records, *more], *answers)]


def _without_memory(state: SchedulerState, node: Node, reason: str) -> list[Record]:
    """A holder that cannot take a copy into its memory would say the same of the next step: an event says so once for a plan."""
    if not reason or not state.copying.in_memory or state.copying.memory_refused:
        return []
    state.copying.memory_refused, state.copying.due_in_memory = True, 0
    text = f"{node.record.node_id} takes no copy into its memory, so until the next plan none are made there: {reason}"
    return [state.event(EventKind.COPIES_LIMITED, generation=state.job.generation, reason=text)]


def _of_plan(
    state: SchedulerState, node: Node, failed: CopyFailed, records: list[Record]
) -> list[SchedulerEffect]:
    """What a plan goes back to did not come: the next one names other sources, or goes back further."""
    of_this = failed.generation == state.job.generation and failed.rank == node.record.rank
    if not failed.gives_up or not of_this:
        return [state.answer(node, failed.request_id, records)]
    # What is named here is not named in a plan again, or the same plan would be made for ever.
    state.copying.not_given |= {(fault.source.address, failed.digest) for fault in failed.failures}
    if failed.reason or not failed.failures:
        state.copying.not_taken.add((failed.rank, node.record.incarnation, failed.digest))
    why = _why(failed)
    state.checkpoints.note_not_fetched(failed.rank, failed.step, why)
    state.facts.fail(f"{node.record.node_id} could not fetch its checkpoint of step {failed.step}: {why}")
    return [state.answer(node, failed.request_id, records)]


def _reject(state: SchedulerState, failed: CopyFailed, fault: FetchFault) -> list[Record]:
    """A source's copy is damaged. The owner's own file is looked at when it is loaded, whatever another node makes of it."""
    name = fault.source.node_id
    held = state.checkpoints.copies.holders(failed.rank, failed.step).get(name)
    if held is None or held.digest != failed.digest:
        return []
    record = state.checkpoints.copies.reject(name, failed.rank, failed.step, fault.reason)
    assert record is not None, "it is known to hold one"
    event = state.node_event(
        EventKind.CHECKPOINT_INVALID,
        state.nodes[name],
        step=failed.step,
        reason=f"its copy for rank {failed.rank}: {fault.reason}",
        details=held.path,
    )
    return [record, event]


def _event(state: SchedulerState, node: Node, failed: CopyFailed) -> EventRecord:
    return state.node_event(
        EventKind.COPY_FAILED,
        node,
        step=failed.step,
        reason=_why(failed),
        details=f"rank {failed.rank}{'' if failed.gives_up else FROM_ANOTHER}",
    )


def _why(failed: CopyFailed) -> str:
    faults = [f"{fault.source.node_id}: {fault.reason}" for fault in failed.failures]
    return "; ".join([*faults, *([failed.reason] if failed.reason else [])]) or "no node was named"
