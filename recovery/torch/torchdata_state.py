"""What torchdata's StatefulDataLoader (0.11) says of itself, and what is to be known of it."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import Dataset

from recovery.torch import loader_workers


def made(dataset: Dataset[Any], **options: Any) -> Any:
    """One over a data set with a state."""
    from torchdata.stateful_dataloader import (  # noqa: PLC0415 - for data sets with a state
        StatefulDataLoader,
    )

    loader_workers.keep(StatefulDataLoader)
    with warnings.catch_warnings():
        # torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated
        warnings.simplefilter("ignore", UserWarning)
        return StatefulDataLoader(dataset, **options)


def has_ended(state: Any) -> bool:
    """Is it of a pass that has given all? torchdata would load the data set's last state and never begin it: the next pass would be empty."""
    return bool((state.get("fetcher_state") or {}).get("fetcher_ended"))


def is_torchdatas(part: Any) -> bool:
    """Is it of a class of torchdata's?"""
    return type(part).__module__.startswith("torchdata.")


def is_drawn_again(state: Any) -> bool:
    """Is it of a StatefulDataLoader whose data set has no state, so that it draws again what was used?

    torchdata counts what it draws again as used once more: what it says of itself behind such a restore is another place.
    """
    if not isinstance(state, dict):
        return False
    workers = state.get("_snapshot", {}).get("_worker_snapshots", {}) or {"": state}
    fetchers = [(worker.get("fetcher_state"), worker.get("dataset_state")) for worker in workers.values()]
    return any(
        fetcher is not None and fetcher.get("dataset_iter_state") is None and of_set is None
        for fetcher, of_set in fetchers
    )


def not_ended(state: Any) -> Any:
    """The same place, with a data set that is yet to say that it has ended.

    torchdata would not ask it: a data set that goes on where it was put would do so in the next pass, which would be empty.
    """
    fetcher = state.get("fetcher_state") if isinstance(state, dict) else None
    if not fetcher or not fetcher.get("fetcher_ended"):
        return state
    return {**state, "_iterator_finished": False, "fetcher_state": {**fetcher, "fetcher_ended": False}}
