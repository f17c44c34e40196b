"""What may be asked of a `ResumableLoader`."""

from __future__ import annotations

from typing import Any

from recovery.errors import UsageError

BATCH_SIZE = 32
"""Where nothing else is said."""
_OURS = frozenset({"generator", "in_order"})
"""With in_order=False the batches that were received are not the first ones of a pass."""


def check(iterable: bool, batch_size: int, sampler: Any, batch_sampler: Any, options: dict[str, Any]) -> None:
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
    if batch_size < 1 or options.keys() & _OURS:
        raise UsageError(
            field="ResumableLoader",
            reason=f"takes no {sorted(options.keys() & _OURS)}"
            if batch_size >= 1
            else f"batch_size={batch_size}",
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
