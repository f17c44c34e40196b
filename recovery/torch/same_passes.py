"""Passes of unequal length, found before they begin: at the end of the shorter one every rank would wait in a collective, until its timeout.

The first rank to begin a pass writes down in the world's store how many batches it has; each other one compares. So nobody waits for
anybody, and the last one finds out what there is to find: it has not trained a step of the pass by then, and the others train none without it.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import distributed
from torch.utils.data import IterableDataset

from recovery.errors import UsageError
from recovery.torch.collective_errors import is_collective_error

_logger = logging.getLogger("recovery.torch")

_said: set[int] = set()
"""Levels of what was said in this process already."""


def check(length: int | None, *, epoch: int) -> None:
    """Compare the pass that begins with that of the other ranks; costs one question to the world's store.

    Args:
        length: batches that this rank's loader gives in it. None: it does not say, which is not compared, and an event says so once.
        epoch: passes that are finished.

    Raises:
        UsageError: another rank's has more batches, or fewer.
    """
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    if length is None:
        # Many streams have none; only the user knows whether they are equal.
        _not_compared(logging.INFO, epoch, "the loader does not say how many batches a pass has")
        return
    rank = distributed.get_rank()
    first, of_first = _first_to_say(epoch, rank, length)
    if of_first == length:
        return
    raise UsageError(
        field="loader",
        reason=f"pass {epoch + 1} has {length} batches on rank {rank} and {of_first} on rank {first}: behind the shorter one's end the ranks"
        " would wait for each other in a collective, until its timeout",
        next_step="Give every rank as many: share the samples by ResumableLoader or DistributedSampler, which pad the shares or, with drop_last=True,"
        " cut them to one length, and give all ranks one batch_size.",
    )


def length_of(loader: Any) -> int | None:
    """Batches of a pass of it; None: it does not say, or torch guesses, as of an iterable data set."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:  # noqa: BLE001 - of the user's; it trains without one
        return None


def _first_to_say(epoch: int, rank: int, length: int) -> tuple[int, int]:
    """Which rank was the first to begin this pass in this world, and with how many batches."""
    own = f"{rank} {length}"
    try:
        said = first_said(f"recovery/pass/{epoch}", own)
    except NotSaidError as error:
        _not_compared(error.level, epoch, str(error))
        said = own
    first, of_first = said.split()
    return int(first), int(of_first)


class NotSaidError(Exception):
    """The world's store cannot tell. `level` is of a line about it: where rank 0 has left the generation is over, and nothing depends on the answer."""

    level = logging.DEBUG


def first_said(place: str, own: str, *, counter: str = "") -> str:
    """What was the first to be written at a place of the world's store: `own`, where nobody has.

    `counter` is of the places of this rank that have one name, in the order in which each rank comes to them; empty: there is one.

    Raises:
        NotSaidError: the store cannot tell.
    """
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
    try:
        here = f"{place}/{store.add(counter, 1)}" if counter else place
        return bytes(store.compare_set(here, "", own)).decode()
    except (RuntimeError, NotImplementedError) as error:
        not_said = NotSaidError(f"{type(error).__name__}: {error}")
        if not is_collective_error(error):
            # The script's own store cannot do this.
            not_said.level = logging.WARNING
        raise not_said from error


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
