"""The message with which a worker says that it can follow a plan, and what it holds."""

from __future__ import annotations

import msgspec

from recovery.core.ids import Generation
from recovery.core.messages import SKIPPED_MAX, Ready
from recovery.core.policy.message_share import copies_that_fit, newest_that_fit
from recovery.core.worker.stimuli import CheckpointsFound, TrainingStopped


def make_ready(
    found: CheckpointsFound,
    *,
    generation: Generation,
    step: int,
    committed_step: int,
    frame_bytes_max: int,
    stopped: TrainingStopped | None = None,
) -> Ready:
    """Make the message that says what a rank holds, bounded in each of its lists.

    Args:
        found: what lies in its directories.
        generation: the last one whose plan it was given.
        step: how far it is.
        committed_step: as `newest_that_fit`.
        frame_bytes_max: as `newest_that_fit`.
        stopped: how it has left its training; None: it has not trained in this job.
    """
    held = newest_that_fit(found.held, committed_step=committed_step, frame_bytes_max=frame_bytes_max)
    named, past = found.passed_over[:SKIPPED_MAX], found.past
    if past is not None:
        of_past = newest_that_fit(past.held, committed_step=committed_step, frame_bytes_max=frame_bytes_max)
        copies = copies_that_fit(past.copies, committed_step=committed_step, frame_bytes_max=frame_bytes_max)
        past = msgspec.structs.replace(past, held=of_past, copies=copies)
    return Ready(
        request_id=found.request_id,
        generation=generation,
        step=step,
        held=held,
        left_out=len(found.held) - len(held),
        passed_over=named,
        passed_over_more=len(found.passed_over) - len(named),
        past=past,
        rank=found.rank,
        copies=copies_that_fit(found.copies, committed_step=committed_step, frame_bytes_max=frame_bytes_max),
        live=stopped.live if stopped is not None else None,
        not_live=stopped.not_live[:1024] if stopped is not None else "",
    )
