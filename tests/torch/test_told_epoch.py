"""Whoever wants to know the pass is told, also where a loader holds it inside of something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset
from typing_extensions import override

import recovery.torch as rt
from recovery.errors import UsageError
from recovery.torch import told_epoch
from recovery.torch.script import passes_of
from recovery.torch.stateful_loader import StatefulLoader
from tests.needs import needs_package
from tests.torch.fake_session import FakeSession


class Told(Dataset[int]):
    """Its samples say which pass it knows of."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> int:
        return self.epoch


class Wrapping(Dataset[int]):
    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __len__(self) -> int:
        return len(self.inside)

    @override
    def __getitem__(self, index: int) -> int:
        return int(self.inside[index])


class Telling(Wrapping):
    """Counts two passes as one, and tells that."""

    def set_epoch(self, epoch: int) -> None:
        self.inside.set_epoch(epoch // 2)


class Stream(IterableDataset[int]):
    def __init__(self, of: Any) -> None:
        self.of = of

    @override
    def __iter__(self) -> Iterator[int]:
        return iter([self.of[number] for number in range(4)])


class Mixing:
    """A transform that follows the passes."""

    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Transformed(Dataset[int]):
    def __init__(self) -> None:
        self.transforms = {"train": [Mixing()]}

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> int:
        return self.transforms["train"][0].epoch


class Rotating(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    @override
    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 4)


class Around:
    """Batches of a loader, on their way to a device, say."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def passes(loader: Any, count: int = 3) -> list[set[int]]:
    found = passes_of(loader, FakeSession())
    given = [{int(row) for batch in found for row in batch} for _ in range(count)]
    found.close()
    return given


MAKES: dict[str, Callable[[], Any]] = {
    "Subset": lambda: Subset(Told(), range(4)),
    "ConcatDataset": lambda: ConcatDataset([Told(), Told()]),
    "a user's": lambda: Wrapping(Told()),
    "several": lambda: Subset(Wrapping(ConcatDataset([Told()])), range(4)),
    "a transform": Transformed,
    "a stream": lambda: Stream(Told()),
}


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
@pytest.mark.parametrize("kind", MAKES)
def test_a_data_set_inside_of_another_is_told(kind: str, options: dict[str, Any]) -> None:
    assert passes(DataLoader(MAKES[kind](), batch_size=2, **options)) == [{0}, {1}, {2}]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Wrapping(Told()), batch_size=2),
        DataLoader(range(4), batch_size=2, sampler=Rotating()),  # type: ignore[arg-type]  # torch takes anything with a length
    ],
)
def test_what_the_loader_inside_of_a_users_iterable_draws_from_is_told(loader: Any) -> None:
    assert passes(Around(loader)) == [{0}, {1}, {2}]


def test_what_tells_what_it_holds_itself_is_told_alone() -> None:
    assert passes(DataLoader(Telling(Told()), batch_size=2)) == [{0}, {0}, {1}]


def test_models_and_what_is_too_far_away_are_not_looked_into() -> None:
    model = torch.nn.Linear(1, 1)
    model.sampler = Rotating()  # type: ignore[assignment]  # as a program may
    far: Any = Rotating()
    for _ in range(7):
        far = Wrapping(far)
    assert told_epoch.listeners([model, far]) == []
    # Not even where it is asked of an object that answers everything.
    assert told_epoch.listeners([type("Proxy", (), {"__getattr__": lambda self, name: name})()]) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_loader_with_a_position_of_its_own_tells_them_too_or_is_refused() -> None:
    package = needs_package("torchdata.stateful_dataloader")
    loader = StatefulLoader(package.StatefulDataLoader(Wrapping(Told()), batch_size=2))
    assert [{int(row) for batch in loader for row in batch} for _ in range(2)] == [{0}, {1}]
    staying = package.StatefulDataLoader(
        Subset(Told(), range(4)), batch_size=2, num_workers=1, persistent_workers=True
    )
    with pytest.raises(UsageError, match="set_epoch of the Told reaches them in their first pass only"):
        rt.TrainState(model=torch.nn.Linear(1, 1), loader=staying)
