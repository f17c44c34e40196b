"""What may be asked of a `ResumableLoader`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from recovery.errors import UsageError

BATCH_SIZE = 32
"""Where nothing else is said."""
_OURS = frozenset({"generator", "in_order"})
"""With in_order=False the batches that were received are not the first ones of a pass."""

_WITHOUT_BUFFER = frozenset({"BufferShuffledExamplesIterable"})
"""Of Hugging Face's streams: `.shuffle()` (datasets 5.2). Their state has not what is in the buffer: it would never be used."""
_SEED_BITS_MAX = 64
"""Of a seed that somebody chose."""
_INSIDE = ("_ex_iterable", "ex_iterable", "ex_iterables", "dataset", "datasets")

_logger = logging.getLogger("recovery.torch")


def has_exact_state(dataset: Any) -> bool:
    """Does it come back by a state of its own to the very sample where it was? A stream that shuffles through a buffer does by drawing again."""
    return hasattr(dataset, "state_dict") and not forgets_buffer(dataset)


def forgets_buffer(dataset: Any) -> bool:
    """Is there a buffer in it whose content is in no state that it gives?"""
    return any(type(part).__name__ in _WITHOUT_BUFFER for part in _parts_of(dataset))


def note_unseeded(dataset: Any) -> None:
    """Log that a stream shuffles by a seed that the operating system gave: another process could not draw it again."""
    for part in _parts_of(dataset):
        sequence = getattr(getattr(getattr(part, "generator", None), "bit_generator", None), "seed_seq", None)
        if type(part).__name__ in _WITHOUT_BUFFER and _is_of_system(getattr(sequence, "entropy", None)):
            _logger.warning(
                "event=shuffle_without_seed the %s shuffles without a seed: a job that goes on in the middle of a pass will find another order, and end. "
                "Give it one, the same on every rank: shuffle(seed=...)",
                type(dataset).__name__,
            )
            return


def _is_of_system(entropy: Any) -> bool:
    """NumPy takes 128 bits where it is given none."""
    return isinstance(entropy, int) and entropy >> _SEED_BITS_MAX > 0


def _parts_of(dataset: Any) -> Iterator[Any]:
    left = [dataset]
    seen = set[int]()
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        inside = [getattr(part, "__dict__", {}).get(name) for name in _INSIDE]
        left += [
            one
            for value in inside
            if value is not None
            for one in (value if isinstance(value, (list, tuple)) else [value])
        ]


def check(
    iterable: bool, batch_size: int | None, sampler: Any, batch_sampler: Any, options: dict[str, Any]
) -> None:
    """Refuse what would take order or position out of the loader's hands.

    Args:
        iterable: is its data set one?
        batch_size: as given, or its default.
        sampler: as given.
        batch_sampler: as given.
        options: further parameters of a DataLoader.

    Raises:
        UsageError: says what, and what to do.
    """
    has_size = iterable if batch_size is None else batch_size >= 1
    if not has_size or options.keys() & _OURS:
        raise UsageError(
            field="ResumableLoader",
            reason=f"takes no {sorted(options.keys() & _OURS)}" if has_size else f"batch_size={batch_size}",
            next_step="Order, shares and position are its own: leave these out, with a batch_size of at least 1.",
        )
    is_sampled = sampler is not None or batch_sampler is not None
    if iterable and (is_sampled or options.get("persistent_workers")):
        raise UsageError(
            field="ResumableLoader",
            reason="takes a sampler, and persistent_workers, of a map-style data set only",
            next_step="An iterable one has its own order, and what it draws would follow from all earlier passes: leave them out.",
        )
    if batch_sampler is not None and (sampler is not None or batch_size != BATCH_SIZE):
        raise UsageError(
            field="ResumableLoader",
            reason="has a batch_sampler, which decides order and batches",
            next_step="Leave out sampler and batch_size.",
        )
