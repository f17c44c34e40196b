"""Which of a rank's checkpoints are named in a message, when there are more than one message can carry?

The newest, and the newest committed one: ranks save together, so what they have in common is among their newest files, and where one
of them could not save for long it is the step that was committed last.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from recovery.core.messages import HeldCheckpoint, HeldCopy

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
    newest_first = sorted(held, key=lambda checkpoint: checkpoint.step, reverse=True)
    chosen: set[int] = set()
    for checkpoint in sorted(newest_first, key=lambda checkpoint: checkpoint.step != committed_step):
        left -= len(_encoder.encode(checkpoint))
        if left < 0:
            break
        chosen.add(checkpoint.step)
    return tuple(checkpoint for checkpoint in newest_first if checkpoint.step in chosen)


def copies_that_fit(
    held: Iterable[HeldCopy], *, committed_step: int, frame_bytes_max: int
) -> tuple[HeldCopy, ...]:
    """Choose which copies a message can carry, newest first; of one step by rank.

    Args:
        held: every copy that the node holds, in any order.
        committed_step: as `newest_that_fit`: copies of that step go first.
        frame_bytes_max: largest message, in bytes.
    """
    free = frame_bytes_max // FRAME_SHARE
    newest_first = sorted(held, key=lambda copy: (-copy.checkpoint.step, copy.rank))
    chosen: set[HeldCopy] = set()
    for copy in sorted(newest_first, key=lambda copy: copy.checkpoint.step != committed_step):
        free -= len(_encoder.encode(copy))
        if free < 0:
            break
        chosen.add(copy)
    return tuple(copy for copy in newest_first if copy in chosen)
