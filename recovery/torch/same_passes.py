"""Passes of unequal length, found before they begin: at the end of the shorter one every rank would wait in a collective, until its timeout.

The first rank to begin a pass writes down in the world's store how many batches it has; each other one compares. So nobody waits for
anybody, and the last one finds out what there is to find: it has not trained a step of the pass by then, and the others train none without it.
"""

from __future__ import annotations

import logging

from torch import distributed

from recovery.errors import UsageError
from recovery.torch.collective_errors import is_collective_error
from recovery.torch.passes import Passes

_logger = logging.getLogger("recovery.torch")

_said: set[int] = set()
"""Levels of what was said in this process already."""


def check(loader: Passes) -> None:
    """Compare the pass that begins with that of the other ranks; costs one question to the world's store.

    Args:
        loader: of this rank. One that does not say how many batches a pass has is not compared, and an event says so once.

    Raises:
        UsageError: another rank's has more batches, or fewer.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    length, rank = loader.length, distributed.get_rank()
    if length is None:
        # Many streams have none; only the user knows whether they are equal.
        _not_compared(logging.INFO, loader.epoch, "the loader does not say how many batches a pass has")
        return
    first, of_first = _first_to_say(loader.epoch, rank, length)
    if of_first == length:
        return
    raise UsageError(
        field="loader",
        reason=f"pass {loader.epoch + 1} has {length} batches on rank {rank} and {of_first} on rank {first}: behind the shorter one's end the ranks"
        " would wait for each other in a collective, until its timeout",
        next_step="Give every rank as many: share the samples by ResumableLoader or DistributedSampler, which pad the shares or, with drop_last=True,"
        " cut them to one length, and give all ranks one batch_size.",
    )


def _first_to_say(epoch: int, rank: int, length: int) -> tuple[int, int]:
    """Which rank was the first to begin this pass in this world, and with how many batches."""
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
    own = f"{rank} {length}"
    try:
        said = store.compare_set(f"recovery/pass/{epoch}", "", own).decode()
    except (RuntimeError, NotImplementedError) as error:
        # Where rank 0 has left, the generation is over, and nothing depends on the answer; else the script's own store cannot do this.
        is_over = is_collective_error(error)
        _not_compared(
            logging.DEBUG if is_over else logging.WARNING, epoch, f"{type(error).__name__}: {error}"
        )
        said = own
    first, of_first = said.split()
    return int(first), int(of_first)


def _not_compared(level: int, epoch: int, reason: str) -> None:
    if level in _said:
        return
    _said.add(level)
    _logger.log(
        level,
        "event=passes_not_compared epoch=%d %s. Give every rank as many batches: behind the shorter pass's end the ranks would wait for each other in a "
        "collective, until its timeout",
        epoch + 1,
        reason,
    )
