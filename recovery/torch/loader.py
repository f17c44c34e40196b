"""A loader that knows its position and comes back to exactly the next batch.

Three cases:

* map-style data set: the sampler skips what was used; nothing is loaded twice. Random augmentation in worker processes is seeded
  anew for every batch from (seed, epoch, batch), so that it does not depend on what a worker did before.
* iterable data set: the epoch's iterator is made again under the random state that held when it was first made, and what was used
  is drawn and dropped.
* iterable data set with `state_dict`: torchdata's StatefulDataLoader brings it back without drawing.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded per batch inside worker processes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from recovery.torch.random_state import RandomState, capture_random_state, restore_random_state
from recovery.training.session import Session

_Key = tuple[int, int, int]
"""(epoch, batch in epoch, index in the data set)."""


class ResumableLoader:
    """Batches of this rank's share of a data set, epoch after epoch.

    Iterating gives the rest of the current epoch; when it is used up the loader stands at the next. The position counts
    batches that the loop has received, not those that workers have prepared.
    """

    def __init__(  # noqa: PLR0913 - a DataLoader's own parameters
        self,
        dataset: Dataset[Any],
        batch_size: int = 32,
        *,
        session: Session,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
    ) -> None:
        """Share the data set among the ranks.

        Args:
            dataset: map-style (shared here, as DistributedSampler does: padded by wrapping unless `drop_last`), or iterable
                (which shares itself; every rank must give the same number of batches).
            batch_size: samples per batch and rank.
            session: of this entry; its rank and world size decide the share.
            shuffle: map-style only: a new order for every epoch, from (seed, epoch), the same on every rank.
            seed: of order and augmentation.
            drop_last: leave out a ragged last batch, and samples that do not divide among the ranks.
            num_workers: as in torch.utils.data.DataLoader.
            collate_fn: likewise.
            pin_memory: likewise.
        """
        self._dataset, self._batch_size = dataset, batch_size
        self._rank, self._world_size = session.rank, session.world_size
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
        }
        self._iterable = isinstance(dataset, IterableDataset)
        self._stateful = self._iterable and hasattr(dataset, "state_dict")
        self._epoch = 0
        self._received = 0
        self._began: RandomState | None = None
        self._inner: Any = None
        self._inner_state: Any = None
        self._primed: Iterator[Any] | None = None
        self._open: Any = None
        session.on_generation_end(self.close)

    def __len__(self) -> int:
        """Batches per epoch and rank, of a map-style data set."""
        share = self._share_size()
        return share // self._batch_size if self._drop_last else -(-share // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Give the rest of the current epoch."""
        batches = self._primed if self._primed is not None else self._begin()
        self._primed = None
        for batch in batches:
            self._received += 1
            yield batch
        self.close()
        self._epoch, self._received, self._began, self._inner_state = self._epoch + 1, 0, None, None

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: epoch (0-based), batches received in it, and what an iterable data set needs besides."""
        state: dict[str, Any] = {"epoch": self._epoch, "received": self._received}
        if self._iterable and self._received:
            state["began"] = self._began
        if self._stateful and self._received and self._inner is not None:
            state["inner"] = self._inner.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position. The iterator is made by `prime` or by the next iteration."""
        self.close()
        self._epoch, self._received = state["epoch"], state["received"]
        self._began, self._inner_state = state.get("began"), state.get("inner")

    def prime(self) -> None:
        """Make the iterator at the position now, drawing whatever that draws, before the random generators are put back."""
        self._primed = self._begin()

    def close(self) -> None:
        """End the worker processes of an iteration that was left."""
        opened, self._open, self._primed = self._open, None, None
        shut_down = getattr(opened, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()

    # --- making an epoch's iterator ------------------------------------------------------------------------------------

    def _begin(self) -> Iterator[Any]:
        if not self._iterable:
            return self._keep(
                DataLoader(
                    _Keyed(self._dataset, self._seed),
                    batch_sampler=self._batches(),
                    generator=self._generator(),
                    **self._options,
                )
            )
        if self._began is None:
            self._began = capture_random_state()
        else:
            restore_random_state(self._began)
        if self._stateful:
            return self._begin_stateful()
        batches = self._keep(
            DataLoader(
                self._dataset,
                batch_size=self._batch_size,
                drop_last=self._drop_last,
                generator=self._generator(),
                **self._options,
            )
        )
        for _ in range(self._received):
            next(batches)
        return batches

    def _begin_stateful(self) -> Iterator[Any]:
        from torchdata.stateful_dataloader import (  # noqa: PLC0415 - for data sets with a state
            StatefulDataLoader,
        )

        self._inner = StatefulDataLoader(
            self._dataset,
            batch_size=self._batch_size,
            drop_last=self._drop_last,
            generator=self._generator(),
            **self._options,
        )
        if self._inner_state is not None:
            self._inner.load_state_dict(self._inner_state)
        return self._keep(self._inner)

    def _keep(self, loader: Any) -> Iterator[Any]:
        self._open = iter(loader)
        batches: Iterator[Any] = self._open
        return batches

    def _generator(self) -> torch.Generator:
        """The loader's own: making an iterator draws a seed, which must not come from the global generators."""
        return torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)

    # --- the share of a map-style data set -----------------------------------------------------------------------------

    def _size(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]  # Dataset has no __len__, map-style ones do

    def _share_size(self) -> int:
        size = self._size()
        return size // self._world_size if self._drop_last else -(-size // self._world_size)

    def _batches(self) -> list[list[_Key]]:
        """What is left of this epoch, as batches of keys."""
        size, share = self._size(), self._share_size()
        order = (
            torch.randperm(size, generator=self._generator()).tolist() if self._shuffle else list(range(size))
        )
        total = share * self._world_size
        order = (order * -(-total // max(1, size)))[
            :total
        ]  # wraps around where the ranks do not divide the data
        mine = order[self._rank : total : self._world_size]
        return [
            [
                (self._epoch, batch, index)
                for index in mine[batch * self._batch_size : (batch + 1) * self._batch_size]
            ]
            for batch in range(self._received, len(self))
        ]


class _Keyed(Dataset[Any]):
    """A map-style data set asked by keys, so that a worker process knows which batch it prepares."""

    def __init__(self, dataset: Dataset[Any], seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitems__(self, keys: Sequence[_Key]) -> list[Any]:
        if get_worker_info() is not None:
            epoch, batch, _ = keys[0]
            _seed_all(hash((self._seed, epoch, batch)) & 0xFFFF_FFFF)
        indices = [index for _, _, index in keys]
        many = getattr(self._dataset, "__getitems__", None)
        return list(many(indices)) if many is not None else [self._dataset[index] for index in indices]


def _seed_all(seed: int) -> None:
    """All generators of a worker process. A hash of whole numbers is the same in every process."""
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy  # noqa: PLC0415 - a worker has it loaded or does not need it
    except ImportError:
        return
    numpy.random.seed(seed)
