"""Which of its checkpoints does a rank report, when it holds more than one message can carry?

The newest, and the newest committed one: ranks save together, so what they have in common is among their newest files, and where one
of them could not save for long it is the step that was committed last.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from recovery.core.ids import Generation
from recovery.core.messages import PASSED_OVER_MAX, HeldCheckpoint, Ready
from recovery.core.worker.stimuli import CheckpointsFound

FRAME_SHARE = 8
"""The list takes an eighth of a frame: some 600 files with paths of usual length, 30 with the longest there can be. A whole frame
would be 4,500, of which a scheduler of 1,000 ranks made 2 GB for one plan; a plan steps back further than 30 only when as many
common steps are damaged."""

_encoder = msgspec.msgpack.Encoder()


def newest_that_fit(
    held: Iterable[HeldCheckpoint], *, committed_step: int, frame_bytes_max: int
) -> tuple[HeldCheckpoint, ...]:
    """Choose what a message can carry, newest first.

    Args:
        held: every checkpoint that the rank holds, in any order.
        committed_step: the newest step that all ranks held, as far as this rank knows; its file is never left out.
        frame_bytes_max: largest message, in bytes.
    """
    left = frame_bytes_max // FRAME_SHARE
    newest_first = sorted(held, key=lambda one: one.step, reverse=True)
    chosen: set[int] = set()
    for one in sorted(newest_first, key=lambda one: one.step != committed_step):
        left -= len(_encoder.encode(one))
        if left < 0:
            break
        chosen.add(one.step)
    return tuple(one for one in newest_first if one.step in chosen)


def make_ready(
    found: CheckpointsFound, *, generation: Generation, step: int, committed_step: int, frame_bytes_max: int
) -> Ready:
    """Make the message that says what a rank holds, bounded in each of its lists.

    Args:
        found: what lies in its directories.
        generation: the last one whose plan it was given.
        step: how far it is.
        committed_step: as `newest_that_fit`.
        frame_bytes_max: as `newest_that_fit`.
    """
    held = newest_that_fit(found.held, committed_step=committed_step, frame_bytes_max=frame_bytes_max)
    named, past = found.passed_over[:PASSED_OVER_MAX], found.past
    if past is not None:
        of_past = newest_that_fit(past.held, committed_step=committed_step, frame_bytes_max=frame_bytes_max)
        past = msgspec.structs.replace(past, held=of_past)
    return Ready(
        request_id=found.request_id,
        generation=generation,
        step=step,
        held=held,
        left_out=len(found.held) - len(held),
        passed_over=named,
        passed_over_more=len(found.passed_over) - len(named),
        past=past,
    )
