"""Loaders that bring their own position, for the training that the cluster tests run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, get_worker_info
from typing_extensions import override

import recovery


class OwnLoader:
    """The user's: without a length, in an order that it draws for each pass from a generator of its own."""

    def __init__(self, data: Any, session: recovery.Session) -> None:
        self._data, self._size = data, len(data)
        self._rank, self._world_size = session.rank, session.world_size
        self._generator = torch.Generator().manual_seed(7)
        self._begun = self._generator.get_state()
        self._at, self._goes_on = 0, False

    def __iter__(self) -> Iterator[Any]:
        if self._goes_on:
            self._generator.set_state(self._begun)
        else:
            self._begun, self._at = self._generator.get_state(), 0
        self._goes_on = False
        mine = torch.randperm(self._size, generator=self._generator)[self._rank :: self._world_size].tolist()
        while self._at < len(mine):
            chosen = mine[self._at : self._at + 8]
            self._at += len(chosen)
            rows, numbers = zip(*(self._data[number] for number in chosen), strict=True)
            yield torch.stack(rows), torch.tensor(numbers)

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self._begun, "at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begun, self._at, self._goes_on = state["begun"].clone(), state["at"], True


class _Quiet(Dataset[Any]):
    """What worker processes draw at random is not restored, so nothing is drawn there."""

    def __init__(self, data: Any) -> None:
        self._rows = [data.row(number) for number in range(len(data))]

    def __len__(self) -> int:
        return len(self._rows)

    @override
    def __getitem__(self, index: int) -> Any:
        return self._rows[index], index


class _Stream(IterableDataset[Any]):
    """The rank's share, without a state: torchdata draws again what was used."""

    def __init__(self, data: Any, session: recovery.Session) -> None:
        self._data, self._mine = _Quiet(data), range(session.rank, len(data), session.world_size)

    @override
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for number in self._mine[info.id :: info.num_workers] if info else self._mine:
            yield self._data[number]


def torchs(data: Any, session: recovery.Session, num_workers: int, *, stream: bool = False) -> Any:
    """torchdata's StatefulDataLoader, over the share of the rank."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    if stream:
        return StatefulDataLoader(_Stream(data, session), 8, num_workers=num_workers)
    data = _Quiet(data) if num_workers else data
    share: DistributedSampler[Any] = DistributedSampler(data, session.world_size, session.rank, seed=7)
    return StatefulDataLoader(data, 8, sampler=share, num_workers=num_workers)


LOADERS: dict[str, Callable[[Any, recovery.Session, int], Any]] = {
    "own": lambda data, session, _: OwnLoader(data, session),
    "stateful": torchs,
    "stateful stream": functools.partial(torchs, stream=True),
}
