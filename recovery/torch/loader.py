"""A loader that knows its position and comes back to exactly the next batch.

Three cases:

* map-style data set: the sampler, or a user's (sampled_order.py), skips what was used; nothing is loaded twice. Random augmentation in
  worker processes is seeded again for every batch from (seed, rank, epoch, batch), so that it does not depend on what a worker did before:
  they may stay from pass to pass. Without worker processes the data set draws from the program's own generators, which are in the checkpoint.
* iterable data set: the epoch's iterator is made again and what was used is drawn and dropped. It draws from random streams of its
  own (random_streams.py), so that the same numbers come back whatever training drew in between. What it gives is compared (received.py).
* iterable data set with a `state_dict` that is exact (loader_options.py): torchdata's StatefulDataLoader brings it back without drawing.

In live rollback (`follow_keys`) a process takes the place of one whose state is lost: the position comes from another rank, and the random
streams follow from the rank's own key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import loader_options, own_generators, restored, told_epoch, torchdata_state
from recovery.torch.compiled_code import compiled_code
from recovery.torch.passes import Passes
from recovery.torch.random_streams import Key, KeyedData, RestOfPass, Streams, WorkerBegin
from recovery.torch.received import Received
from recovery.torch.sampled_order import SampledOrder, parts_of
from recovery.torch.session_interface import SessionInterface
from recovery.training.current import current_session

_logger = logging.getLogger("recovery.torch")


class ResumableLoader(Passes):
    """Batches of this rank's share of a data set, epoch after epoch.

    Iterating gives the rest of the current epoch; when it is used up, or a loop has left it at its length and iterates again, the
    loader is at the next. The position counts batches that the loop has received, not those that workers have prepared.
    """

    def __init__(  # noqa: PLR0913 - a DataLoader's own parameters
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 32,
        *,
        session: SessionInterface,
        shuffle: bool = True,
        sampler: Any = None,
        batch_sampler: Any = None,
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
            batch_size: samples per batch and rank; None: what an iterable data set gives are batches.
            session: of this entry; its rank and world size decide the share.
            shuffle: map-style only: a new order for every epoch, from (seed, epoch), the same on every rank. A sampler decides it by itself.
            sampler: map-style only: gives the order of every epoch, drawn from (seed, epoch), the same on every rank and shared here. One that
                has `rank` and `num_replicas`, as DistributedSampler, gives this rank's share. It has a length.
            batch_sampler: likewise, and it decides the batches: these are shared.
            seed: of order and augmentation.
            drop_last: leave out a ragged last batch, and samples that do not divide among the ranks.
            num_workers: as in torch.utils.data.DataLoader.
            redivide: map-style only. True: a checkpoint that another batch_size was used for is taken up at its sample, and the rest of that
                pass is divided again. False: it is refused, since batches are counted.
            collate_fn: likewise.
            pin_memory: likewise.
            **options: further parameters of a DataLoader: worker_init_fn, multiprocessing_context, prefetch_factor, timeout, and
                persistent_workers of a map-style data set.

        Raises:
            UsageError: a parameter that would take order or position out of our hands.
        """
        self._iterable = isinstance(dataset, IterableDataset)
        loader_options.check(self._iterable, batch_size, sampler, batch_sampler, options)
        kept = parts_of(batch_sampler if sampler is None else sampler)
        loader_options.note_unseeded(dataset)
        own_generators.note(dataset, collate_fn, keeps_state=self._iterable or not num_workers, kept=kept)
        super().__init__((batch_size or 0) if batch_sampler is None else 1)
        self._dataset, self._rank, self._world_size = dataset, session.rank, session.world_size
        self._shuffle, self._seed, self._drop_last, self._redivide = shuffle, seed, drop_last, redivide
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            **options,
        }
        self._by_batches, self._sampled = batch_sampler is not None, None
        self._sharing = session.rank, session.world_size
        if (given := batch_sampler if self._by_batches else sampler) is not None:
            self._sampled = SampledOrder(given, seed=seed, rank=session.rank, world_size=session.world_size)
            self._sharing = self._sampled.sharing
        self._saved_order: tuple[str, Any] = "", None
        self._stateful = self._iterable and loader_options.has_exact_state(dataset)
        self._streams: Streams | None = None
        self._stream, self._begun_size = Received(), 0
        self._key: tuple[int, int] | None = None
        self._inner: Any = None
        self._staying: DataLoader[Any] | None = None
        session.on_generation_end(self.close)
        # A job of one rank forms no world, and every one has a loader.
        session.on_generation_end(compiled_code.end_generation)

    @override
    def __len__(self) -> int:
        """Batches per epoch and rank; of an iterable data set by its own `len`.

        Raises:
            TypeError: the data set has no length.
        """
        share = self._size() if self._iterable else self._share_size()
        size = self._batch_size or 1
        return share // size if self._drop_last else -(-share // size)

    @override
    def _is_used_up(self) -> bool:
        # Of an iterable data set without a length only its end tells.
        if not self._iterable:
            return next(self.rest(), None) is None
        return hasattr(self._dataset, "__len__") and self._received >= len(self)

    @override
    def _next_epoch(self) -> None:
        if self._staying is None:
            self.close()
        super()._next_epoch()
        self._streams, self._stream, self._begun_size = None, Received(), 0

    @property
    @override
    def samples(self) -> int:
        """Samples in them; 0 of an iterable data set and of a batch sampler, which give what they like."""
        # The last batch of a pass may be smaller.
        return 0 if self._iterable or self._by_batches else min(self._samples, self._share_size())

    @property
    @override
    def position(self) -> dict[str, Any]:
        """With the order of a sampler that all ranks share, which is another place in another one."""
        if self._sampled is None:
            return super().position
        is_shared = self._received and not self._sampled.is_share
        return {**super().position, "order": self._sampled.digest_of(self._epoch) if is_shared else ""}

    @property
    @override
    def drawn(self) -> str:
        return self._stream.digest

    @override
    def state_dict(self) -> dict[str, Any]:
        """Where the loop is, in which division of the data, and what an iterable data set needs besides."""
        state = {**self.position, "samples": self.samples, "of": self.division()}
        if self._streams is not None and self._received:
            state["streams"] = self._streams.state_dict()
        if self._received:
            state["drawn"] = self.drawn
            if self._sampled is not None:
                state["order"] = self._sampled.digest_of(self._epoch)
                state["kept_order"] = self._sampled.kept(self._epoch)
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
        self._samples, self._begun_size = self._received * self._batch_size, 0
        if "of" in state:
            self._check_division(state["of"])
            self._samples = state["samples"]
            self._begun_size = state["of"].get("len(dataset)", 0) if self._received else 0
        else:
            _logger.info(
                "event=division_not_checked an earlier release saved no batch_size, seed or length of the data"
            )
        self._saved_order = state.get("order", ""), state.get("kept_order")
        if self._sampled is not None:
            self._sampled.forget()
        self._inner_state = state.get("inner")
        self._streams = Streams(state["streams"]) if "streams" in state else None
        self._stream = Received(state.get("drawn", ""))

    @override
    def close(self) -> None:
        super().close()
        self._inner = self._staying = None

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
        if self._sampled is not None:
            del division["batch_size" if self._by_batches else "shuffle"]
            division["sampler"] = self._sampled.kind
        if self._iterable:
            # Each worker process reads a share of its own.
            return {**division, "num_workers": self._options["num_workers"]}
        size: Any = self._begun_size or len(self._dataset)  # type: ignore[arg-type]  # Dataset has no __len__, map-style ones do
        return {**division, "len(dataset)": size}

    def _check_division(self, saved: dict[str, Any]) -> None:
        if not (changes := self._changes(saved)):
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
                next_step="Give what was given, or go back to a checkpoint between two epochs; another batch_size alone, of a map-style data"
                " set, may be had with ResumableLoader(redivide=True).",
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
        if not self._received and hasattr(self._dataset, "__len__") and not self._iterable:
            # A set that grows meanwhile keeps the order that the pass has begun in.
            self._begun_size = len(self._dataset)
        told_epoch.tell(self._dataset, self._epoch)
        at = self._inner.state_dict() if self._stateful and self._inner is not None else self._inner_state
        # An iteration that was left in the middle goes on here.
        if self._staying is not None:
            return self._keep(self._staying)
        self.close()
        if not self._iterable:
            return self._begin_map_style()
        if self._stateful:
            return self._begin_stateful(at)
        if self._streams is None:
            self._streams = self._new_streams()
        self._streams.rewind()
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_size=self._batch_size or None,
            drop_last=self._drop_last,
            generator=self._generator(self._epoch),
            **self._options,
        )
        with self._streams:
            batches = self._keep(loader)
        batches = self._streams.around(batches)
        kind = getattr(self._dataset, "kind", type(self._dataset).__name__)
        return self._stream.draw_again(
            batches, self._received, of=f"epoch {self._epoch + 1} of the data set {kind}"
        )

    def _begin_map_style(self) -> Iterator[Any]:
        saved, self._saved_order = self._saved_order, ("", None)
        if self._sampled is not None:
            self._sampled.go_on(self._epoch, self._received, *saved)
        stays = bool(self._options.get("persistent_workers"))
        begin = WorkerBegin(self._options.get("worker_init_fn"), epoch=self._epoch, leads=self._leads())
        loader: DataLoader[Any] = DataLoader(
            KeyedData(self._dataset, self._seed, self._rank, begin),
            batch_sampler=RestOfPass(self.rest),
            # Workers that stay are seeded alike whichever pass they begin with.
            generator=self._generator(0 if stays else self._epoch),
            **{**self._options, "worker_init_fn": begin if self._options["num_workers"] else None},
        )
        self._staying = loader if stays else None
        return self._keep(loader)

    def _begin_stateful(self, at: Any) -> Iterator[Any]:
        if self._received and torchdata_state.has_ended(at):
            return iter(())
        inner = torchdata_state.made(
            self._dataset,
            batch_size=self._batch_size or None,
            drop_last=self._drop_last,
            generator=self._generator(self._epoch),
            **self._options,
        )
        if self._streams is None:
            self._streams = self._new_streams()
        saved = self._streams.state_dict()
        if self._received:
            inner.load_state_dict(at)
        with self._streams:
            batches = restored.taken(type(self._dataset).__name__, lambda: self._keep(inner))
        if self._received:
            # The saved streams contain already what making the iterator drew.
            self._streams = Streams(saved)
        self._inner = inner
        return self._streams.around(batches)

    def _leads(self) -> bool:
        """Are the passes of the session those of this loader?"""
        session = current_session()
        state = None if session is None else session.state
        return state is not None and state.batches is self

    def _keep(self, loader: Any) -> Iterator[Any]:
        self._open = iter(loader)
        batches: Iterator[Any] = self._open
        return batches

    def _generator(self, epoch: int) -> torch.Generator:
        """The loader's own: making an iterator draws a seed, which must not come from the global generators."""
        return torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)

    # --- the share of a map-style data set -----------------------------------------------------------------------------

    def _size(self) -> int:
        """Of what is shared: samples, or a batch sampler's batches."""
        if self._sampled is not None:
            return len(self._sampled.of(self._epoch))
        return self._begun_size or len(self._dataset)  # type: ignore[arg-type]  # Dataset has no __len__, map-style ones do

    def _share_size(self) -> int:
        size, ranks = self._size(), self._sharing[1]
        return size // ranks if self._drop_last else -(-size // ranks)

    def rest(self) -> Iterator[list[Key]]:
        """What is left of this epoch, as batches of keys. Padded by wrapping where the ranks do not divide the data."""
        size, epoch, (rank, ranks) = self._size(), self._epoch, self._sharing
        given = self._sampled.of(epoch) if self._sampled is not None else None
        is_drawn = self._shuffle and given is None
        order = torch.randperm(size, generator=self._generator(epoch)) if is_drawn else torch.arange(size)
        positions = torch.arange(self._share_size()) * ranks + rank
        mine = order[positions % max(1, size)]
        begin, batch = self._received if self._by_batches else self.samples, self._received
        while begin < len(mine) and (begin + self._batch_size <= len(mine) or not self._drop_last):
            chosen = mine[begin : begin + self._batch_size].tolist()
            if given is not None:
                chosen = given[chosen[0]] if self._by_batches else [given[number] for number in chosen]
            yield [(epoch, batch, index) for index in chosen]
            begin, batch = begin + self._batch_size, batch + 1
