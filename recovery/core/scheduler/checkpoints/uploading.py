"""Which committed step the ranks send to object storage: one at a time, all ranks the same, and of those that wait only the newest.

It is over when each rank has said that its part is there, or one that it does not have it any more. Nothing of it is stored: the next scheduler
orders the newest committed step, of which a rank that has sent its part says so at once.
"""

from __future__ import annotations

from recovery.core.copy_messages import UploadOrder, UploadReport
from recovery.core.effects import Answer, Log, Persist
from recovery.core.ids import Rank
from recovery.core.scheduler.checkpoints.copying import all_are_here
from recovery.core.scheduler.effects import SchedulerEffect
from recovery.core.scheduler.node import Node
from recovery.core.scheduler.state import SchedulerState


def committed(state: SchedulerState, step: int) -> list[SchedulerEffect]:
    """A step is committed on the disks: it is next, and one that waited is not sent."""
    uploading = state.uploading
    skipped, uploading.due, uploading.rescan = uploading.due, step if _is_sent(state, step) else 0, True
    if not skipped or not uploading.due:
        return []
    why = uploading.failure or "object storage was not done with the step before"
    return [Log("uploads_skipped", f"steps={skipped} instead={step} reason={why!r}", warning=True)]


def _is_sent(state: SchedulerState, step: int) -> bool:
    """Is there a storage, and does each rank hold its part as files of its own? A folder that a framework wrote is not sent."""
    files = [state.checkpoints.file_of(Rank(rank), step) for rank in range(state.rules.world_size)]
    return any(node.stores for node in state.workers) and not any(
        file is None or file.is_folder for file in files
    )


def order(state: SchedulerState) -> list[SchedulerEffect]:
    """Order what can be ordered now, while a generation is under way."""
    uploading = state.uploading
    uploading.rescan = False
    is_free = bool(uploading.due and not uploading.step)
    if is_free and all_are_here(state) and _is_sent(state, uploading.due):
        uploading.begin(state.rules.world_size)
    orders = _orders(state) if uploading.pending else ()
    return [Persist((), orders)] if orders else []


def _orders(state: SchedulerState) -> tuple[Answer, ...]:
    """What was not ordered yet on the rank's connection."""
    uploading = state.uploading
    found: list[Answer] = []
    for node in state.workers:
        rank, connection = node.record.rank, node.connection
        if rank is None or connection is None or not node.stores:
            continue
        file = state.checkpoints.file_of(rank, uploading.step)
        if file is not None and uploading.pending.get(rank, connection) != connection:
            uploading.pending[rank] = connection
            found.append(Answer(connection, UploadOrder(run=state.job.run, checkpoint=file)))
    return tuple(found)


def on_upload_report(state: SchedulerState, node: Node, report: UploadReport) -> list[SchedulerEffect]:
    """A rank's part is there, or never will be."""
    uploading, rank = state.uploading, node.record.rank
    if rank is not None and rank in uploading.pending and report.step == uploading.step:
        file = state.checkpoints.file_of(rank, report.step)
        # Another one of this step was rolled back.
        if file is not None and file.digest == report.digest:
            uploading.note_sent(rank, is_there=report.is_there)
            passed = [] if report.is_there else [_passed(node, report.step)]
            return [*passed, state.answer(node, report.request_id, [])]
    return [state.answer(node, report.request_id, [])]


def _passed(node: Node, step: int) -> Log:
    text = f"step={step} node={node.record.node_id} it has no part of it to send: this step will not be there"
    return Log("upload_passed", text, warning=True)
