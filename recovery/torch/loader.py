"""A loader that knows its position and comes back to exactly the next batch.

Three cases:

* map-style data set: the sampler skips what was used; nothing is loaded twice. Random augmentation in worker processes is seeded
  again for every batch from (seed, rank, epoch, batch), so that it does not depend on what a worker did before. Without worker
  processes the data set draws from the program's own generators, which are in the checkpoint.
* iterable data set: the epoch's iterator is made again and what was used is drawn and dropped. It draws from random streams of its
  own (random_streams.py), so that the same numbers come back whatever training drew in between.
* iterable data set with `state_dict`: torchdata's StatefulDataLoader brings it back without drawing.

In live rollback (`follow_keys`) a process takes the place of one whose state is lost: the position comes from another rank, and the random
streams follow from the rank's own key.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from typing_extensions import override

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch.keyed_data import Key, KeyedData, RestOfPass
from recovery.torch.module_names import forget_compiled
from recovery.torch.passes import Passes
from recovery.torch.random_streams import Streams
from recovery.torch.session_interface import SessionInterface

_logger = logging.getLogger("recovery.torch")

_OURS = frozenset({"sampler", "batch_sampler", "generator", "in_order", "persistent_workers"})


class ResumableLoader(Passes):
    """Batches of this rank's share of a data set, epoch after epoch.

    Iterating gives the rest of the current epoch; when it is used up, or a loop has left it at its length and iterates again, the
    loader is at the next. The position counts batches that the loop has received, not those that workers have prepared.
    """

    def __init__(  # noqa: PLR0913 - a DataLoader's own parameters
        self,
        dataset: Dataset[Any],
        batch_size: int = 32,
        *,
        session: SessionInterface,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        redivide: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        **options: Any,
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
            redivide: map-style only. True: a checkpoint that another batch_size was used for is taken up at its sample, and the rest of that
                pass is divided again. False: it is refused, since batches are counted.
            collate_fn: likewise.
            pin_memory: likewise.
            **options: further parameters of a DataLoader: worker_init_fn, multiprocessing_context, prefetch_factor, timeout.

        Raises:
            UsageError: a parameter that would take order or position out of our hands.
        """
        if batch_size < 1 or options.keys() & _OURS:
            raise UsageError(
                field="ResumableLoader",
                reason=f"takes no {sorted(options.keys() & _OURS)}"
                if batch_size >= 1
                else f"batch_size={batch_size}",
                next_step="Order, shares and position are its own: leave these out, with a batch_size of at least 1.",
            )
        super().__init__(batch_size)
        self._dataset = dataset
        self._rank, self._world_size = session.rank, session.world_size
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            **options,
        }
        self._iterable = isinstance(dataset, IterableDataset)
        self._stateful = self._iterable and hasattr(dataset, "state_dict")
        self._redivide = redivide
        self._streams: Streams | None = None
        self._key: tuple[int, int] | None = None
        self._inner: Any = None
        session.on_generation_end(self.close)
        # A job of one rank forms no world, and every one has a loader.
        session.on_generation_end(forget_compiled)

    def __len__(self) -> int:
        """Batches per epoch and rank; of an iterable data set by its own `len`.

        Raises:
            TypeError: the data set has no length.
        """
        share = self._size() if self._iterable else self._share_size()
        return share // self._batch_size if self._drop_last else -(-share // self._batch_size)

    @override
    def _is_used_up(self) -> bool:
        # Of an iterable data set without a length only its end tells.
        if not self._iterable:
            return next(self.rest(), None) is None
        return hasattr(self._dataset, "__len__") and self._received >= len(self)

    @override
    def _next_epoch(self) -> None:
        self.close()
        super()._next_epoch()
        self._streams = None

    @property
    @override
    def samples(self) -> int:
        """Samples in them; 0 of an iterable data set, which gives what it likes."""
        # The last batch of a pass may be smaller.
        return 0 if self._iterable else min(self._samples, self._share_size())

    @override
    def state_dict(self) -> dict[str, Any]:
        """Where the loop is, in which division of the data, and what an iterable data set needs besides."""
        state = {**self.position, "samples": self.samples, "of": self.division()}
        if self._streams is not None and self._received:
            state["streams"] = self._streams.state_dict()
        if self._stateful and self._received:
            state["inner"] = self._inner.state_dict() if self._inner is not None else self._inner_state
        return state

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position. The iterator is made by `prime` or by the next iteration.

        Raises:
            CheckpointStateError: in the middle of a pass, and the data is divided otherwise here: the same number of batches is another place.
        """
        self.close()
        self._is_iterated = False
        self._epoch, self._received = state["epoch"], state["received"]
        self._samples = self._received * self._batch_size
        if "of" in state:
            self._check_division(state["of"])
            self._samples = state["samples"]
        else:
            _logger.info(
                "event=division_not_checked an earlier release saved no batch_size, seed or length of the data"
            )
        self._inner_state = state.get("inner")
        self._streams = Streams(state["streams"]) if "streams" in state else None

    @override
    def close(self) -> None:
        super().close()
        self._inner = None

    # --- what a position is a position in ------------------------------------------------------------------------------

    @override
    def division(self) -> dict[str, Any]:
        division: dict[str, Any] = {
            "batch_size": self._batch_size,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "drop_last": self._drop_last,
            "world_size": self._world_size,
        }
        if self._iterable:
            # Each worker process reads a share of its own.
            return {**division, "num_workers": self._options["num_workers"]}
        return {**division, "len(dataset)": self._size()}

    def _check_division(self, saved: dict[str, Any]) -> None:
        changes = self._changes(saved)
        if not changes:
            return
        said = ", ".join(changes.values())
        if not self._received:
            _logger.warning("event=division_changed epoch=%d %s: from this pass on", self._epoch + 1, said)
        elif self._redivide and list(changes) == ["batch_size"] and not self._iterable:
            _logger.warning("event=pass_redivided epoch=%d %s", self._epoch + 1, said)
        else:
            raise CheckpointStateError(
                field="ResumableLoader",
                reason=f"{said}, so batch {self._received} of epoch {self._epoch + 1}, where the checkpoint stands, is another place",
                next_step="Give what was given, or go back to a checkpoint between two epochs; another batch_size alone may be had with"
                " ResumableLoader(redivide=True).",
            )

    # --- live rollback -------------------------------------------------------------------------------------------------

    @override
    def follow_keys(self, seed: int, number: int) -> None:
        """Let the random streams of an iterable data set follow from (seed, number, epoch), not from the program's generators.

        Called before a position is loaded and before anything is drawn.

        Args:
            seed: of the rank (keyed.py).
            number: of this loader among those of the training, in an order that all ranks share.
        """
        self._key = seed, number

    @override
    def load_position(self, state: Mapping[str, Any]) -> None:
        """Go where another rank's loader is, by its `position` and its division (`of`). The random streams are this rank's own. Errors as of `load_state_dict`."""
        assert self._key is not None, "follow_keys comes first"
        assert not self._stateful, self.why_not_derivable
        self.load_state_dict(dict(state))

    @property
    @override
    def why_not_derivable(self) -> str:
        if self._stateful:
            return f"its data set {type(self._dataset).__name__} has a state_dict of its own, which only this rank knows"
        if self._key is None or self._streams is None or self._streams.begin_as(self._new_streams()):
            return ""
        return "it goes on, to its epoch's end, with random streams of a checkpoint without MS_ROLLBACK=live or of another seed"

    def _new_streams(self) -> Streams:
        if self._key is None:
            return Streams.derived()
        seed, number = self._key
        # Ranks that were seeded alike shuffle alike, as they do without keys.
        return Streams.keyed(seed, number, self._epoch)

    # --- making an epoch's iterator ------------------------------------------------------------------------------------

    @override
    def _begin(self) -> Iterator[Any]:
        at = self._inner.state_dict() if self._stateful and self._inner is not None else self._inner_state
        # An iteration that was left in the middle goes on here.
        self.close()
        if not self._iterable:
            return self._keep(
                DataLoader(
                    KeyedData(self._dataset, self._seed, self._rank),
                    batch_sampler=RestOfPass(self.rest),
                    generator=self._generator(),
                    **self._options,
                )
            )
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        if self._stateful:
            return self._begin_stateful(at)
        if self._streams is None:
            self._streams = self._new_streams()
        self._streams.rewind()
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_size=self._batch_size,
            drop_last=self._drop_last,
            generator=self._generator(),
            **self._options,
        )
        with self._streams:
            batches = self._keep(loader)
        batches = self._streams.around(batches)
        for _ in range(self._received):
            if next(batches, self) is self:
                raise CheckpointStateError(
                    field="loader",
                    reason=f"the data set ended before batch {self._received} of epoch {self._epoch}, which is the checkpoint's position",
                    next_step="Give the data set that the checkpoint was made with.",
                )
        return batches

    def _begin_stateful(self, at: Any) -> Iterator[Any]:
        from torchdata.stateful_dataloader import (  # noqa: PLC0415 - for data sets with a state
            StatefulDataLoader,
        )

        with warnings.catch_warnings():
            # torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated
            warnings.simplefilter("ignore", UserWarning)
            inner = StatefulDataLoader(
                self._dataset,
                batch_size=self._batch_size,
                drop_last=self._drop_last,
                generator=self._generator(),
                **self._options,
            )
        if self._received and (at.get("fetcher_state") or {}).get("fetcher_ended"):
            # torchdata 0.11 would load the data set's last state and never begin it: the next epoch would be empty.
            return iter(())
        if self._streams is None:
            self._streams = self._new_streams()
        saved = self._streams.state_dict()
        if self._received:
            inner.load_state_dict(at)
        with self._streams:
            batches = self._keep(inner)
        if self._received:
            # The saved streams contain already what making the iterator drew.
            self._streams = Streams(saved)
        self._inner = inner
        return self._streams.around(batches)

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

    def rest(self) -> Iterator[list[Key]]:
        """What is left of this epoch, as batches of keys. Padded by wrapping where the ranks do not divide the data."""
        size, epoch = self._size(), self._epoch
        order = torch.randperm(size, generator=self._generator()) if self._shuffle else torch.arange(size)
        positions = torch.arange(self._share_size()) * self._world_size + self._rank
        mine = order[positions % max(1, size)]
        begin, batch = self.samples, self._received
        while begin < len(mine) and (begin + self._batch_size <= len(mine) or not self._drop_last):
            yield [(epoch, batch, index) for index in mine[begin : begin + self._batch_size].tolist()]
            begin, batch = begin + self._batch_size, batch + 1
