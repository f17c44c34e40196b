"""What data sets draw: an iterable one from random streams of its own, a map-style one in a worker process from seeds by batch, whatever it did before.

A data set that shuffles through a buffer draws between the steps of training. If both drew from the same generators, its next choice
would depend on every dropout mask before, and nothing but repeating the whole training could bring it back.
"""

from __future__ import annotations

import hashlib
import random  # noqa: TID251 - seeded here, for data sets that draw from it
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, get_worker_info
from typing_extensions import override

from recovery.torch import told_epoch
from recovery.torch.keyed import digest_of
from recovery.torch.random_state import RandomState, capture_random_state, restore_random_state
from recovery.training.current import current_session

Key = tuple[int, int, int]
"""(epoch, batch in epoch, index in the data set)."""

_Seeds = dict[str, int]


class Streams:
    """Python's, NumPy's and PyTorch's CPU generators as one data set sees them. Inside a `with` block they are as the data set left them.

    CUDA generators are left alone: a data set that draws on a device draws from training's.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._seeds: _Seeds = state["seeds"]
        self._now: RandomState | None = state["now"]
        self._outside: RandomState | None = None

    @classmethod
    def derived(cls) -> Streams:
        """Begin streams that follow from the program's generators as they are, each from its own, without drawing from any.

        So ranks that were seeded alike shuffle alike, and ranks that were not do not.
        """
        state = capture_random_state()
        seeds = {name: _digest(state[name]) for name in ("python", "torch", "numpy") if name in state}
        return cls({"seeds": seeds, "now": None})

    @classmethod
    def keyed(cls, seed: int, number: int, epoch: int) -> Streams:
        """Begin streams that follow from these alone, so that another process can begin the same ones.

        The seed is of the rank (keyed.py), the number of the loader among those of a training, the epoch 0-based.
        """
        digest = digest_of("loader", seed, number, epoch)
        parts = {"python": digest[:8], "torch": digest[8:16], "numpy": digest[16:24]}
        return cls({"seeds": {name: _number(part) for name, part in parts.items()}, "now": None})

    def begin_as(self, other: Streams) -> bool:
        """Did both begin alike, wherever they are now?"""
        return self._seeds == other._seeds

    def rewind(self) -> None:
        """Go back to the beginning."""
        self._now = None

    def state_dict(self) -> dict[str, Any]:
        """Where they began and where they are."""
        return {"seeds": self._seeds, "now": self._now}

    def around(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, each drawn inside these streams."""
        while True:
            with self:
                batch = next(batches, self)
            if batch is self:
                return
            yield batch

    def __enter__(self) -> None:
        self._outside = _on_cpu(capture_random_state())
        if self._now is not None:
            restore_random_state(self._now)
            return
        random.seed(self._seeds["python"])
        torch.default_generator.manual_seed(self._seeds["torch"])
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self._seeds.get("numpy", 0) % 2**32)

    def __exit__(self, *exception: object) -> None:
        self._now = _on_cpu(capture_random_state())
        assert self._outside is not None, "entered before"
        restore_random_state(self._outside)


def _seed_all(*parts: int) -> int:
    """Seed every generator of this (worker) process from these numbers alone, and say the seed."""
    seed = _number(hashlib.sha256(repr(parts).encode()).digest()[:8])
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    return seed


def _digest(state: Any) -> int:
    plain = (
        state.tolist()
        if isinstance(state, torch.Tensor)
        else [part.tolist() if isinstance(part, torch.Tensor) else part for part in state]
    )
    return _number(hashlib.sha256(repr(plain).encode()).digest()[:8])


def _number(part: bytes) -> int:
    return int.from_bytes(part, "big") >> 1


def _on_cpu(state: RandomState) -> RandomState:
    return {**state, "cuda": [], "cuda_seed": None}


class RestOfPass(Sampler[list[Key]]):
    """The batches that are left, as a sampler: each is made when it is asked for."""

    def __init__(self, rest: Callable[[], Iterator[list[Key]]]) -> None:
        """Of a loader, which says what is left."""
        self._rest = rest

    @override
    def __iter__(self) -> Iterator[list[Key]]:
        return self._rest()


class WorkerBegin:
    """What is done first in a worker process of a map-style data set, and again where one that stays comes to another pass."""

    def __init__(self, user: Callable[[int], None] | None, *, epoch: int, leads: bool) -> None:
        """Note it in the training process.

        Args:
            user: worker_init_fn as given.
            epoch: passes that were finished when the process began: what the data set was told.
            leads: the passes of the session are those of this loader.
        """
        self._user, self._epoch, self._leads = user, epoch, leads

    def __call__(self, worker: int) -> None:
        """Say to whoever asks torch for its data set, as the user's function does to give each process a share, which one is the user's."""
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.inside)
        if self._user is not None:
            self._user(worker)

    def come_to(self, epoch: int, dataset: Any) -> None:
        """Have the data set know which pass it is: the process may have been started in an earlier one."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        told_epoch.tell(dataset, epoch)
        if self._leads and (session := current_session()) is not None:
            session.epoch = epoch + 1


class KeyedData(Dataset[Any]):
    """Of a rank; what is asked for are keys."""

    def __init__(self, dataset: Dataset[Any], seed: int, rank: int, begin: WorkerBegin) -> None:
        """Wrap a map-style data set; `seed` is of augmentation in worker processes, and `rank` says whose share it is asked for."""
        self.inside, self._seed, self._rank, self._begin = dataset, seed, rank, begin

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        if (info := get_worker_info()) is not None:
            epoch, batch, _ = keys[0]
            self._begin.come_to(epoch, self.inside)
            seed = _seed_all(self._seed, self._rank, epoch, batch)
            # Data sets seed generators of their own from it. torch lets nobody set it, and would say which worker this is, which may be another.
            object.__setattr__(info, "seed", seed)
        indices = [index for _, _, index in keys]
        many = getattr(self.inside, "__getitems__", None)
        return list(many(indices)) if many is not None else [self.inside[index] for index in indices]
