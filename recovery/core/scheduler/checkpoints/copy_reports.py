"""What holders report of copies: one is there, one did not come. And what a rank reports that fetched what its plan goes back to."""

from __future__ import annotations

from recovery.core.copy_messages import CopyFailed, CopyReport, FetchFault
from recovery.core.failed_work import FROM_ANOTHER
from recovery.core.policy import rollback
from recovery.core.records import EventKind, EventRecord, Record
from recovery.core.scheduler.checkpoints import copying
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


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
    state.copying.refuse_memory()
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
