"""A map-style data set asked by keys that say which batch is prepared, so that a worker process can draw the same whatever it did before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, Sampler, get_worker_info
from typing_extensions import override

from recovery.torch import random_streams

Key = tuple[int, int, int]
"""(epoch, batch in epoch, index in the data set)."""


class RestOfPass(Sampler[list[Key]]):
    """The batches that are left, as a sampler: each is made when it is asked for."""

    def __init__(self, rest: Callable[[], Iterator[list[Key]]]) -> None:
        """Of a loader, which says what is left."""
        self._rest = rest

    @override
    def __iter__(self) -> Iterator[list[Key]]:
        return self._rest()


class KeyedData(Dataset[Any]):
    """Of a rank; what is asked for are keys."""

    def __init__(self, dataset: Dataset[Any], seed: int, rank: int) -> None:
        """Wrap a data set.

        Args:
            dataset: map-style.
            seed: of augmentation in worker processes.
            rank: whose share it is asked for.
        """
        self._dataset, self._seed, self._rank = dataset, seed, rank

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        if (info := get_worker_info()) is not None:
            epoch, batch, _ = keys[0]
            seed = random_streams.seed_all(self._seed, self._rank, epoch, batch)
            # Data sets seed generators of their own from it. torch lets nobody set it, and would say which worker this is, which may be another.
            object.__setattr__(info, "seed", seed)
        indices = [index for _, _, index in keys]
        many = getattr(self._dataset, "__getitems__", None)
        return list(many(indices)) if many is not None else [self._dataset[index] for index in indices]
