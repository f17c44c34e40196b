"""A generator that a data set keeps for itself is told, since no checkpoint has it; nothing of the data set is run for it."""

from __future__ import annotations

import functools
import logging
import random
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, Sampler, Subset
from typing_extensions import override

from recovery.torch import ResumableLoader, own_generators
from recovery.torch.stateful_loader import StatefulLoader
from tests.needs import needs_package
from tests.torch.fake_session import FakeSession

SIZE = 20


class Rows(Dataset[Any]):
    """Holds what a test gives it."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return SIZE

    @override
    def __getitem__(self, index: int) -> float:
        return float(index)


class Noisy(Dataset[Any]):
    def __init__(self) -> None:
        self.rng = random.Random(5)

    def __len__(self) -> int:
        return SIZE

    @override
    def __getitem__(self, index: int) -> float:
        return index + self.rng.random()


class Slotted:
    __slots__ = ("empty", "rng")

    def __init__(self, rng: Any) -> None:
        self.rng = rng


class Pair(NamedTuple):
    crop: random.Random
    kinds: set[Any]


class Closed:
    rng: Any

    @override
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"was asked for {name}")


class OfTheClass(Rows):
    rng = numpy.random.RandomState(1)


class Stream(IterableDataset[Any]):
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(range(SIZE))


class Positioned(Stream):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def collate(rng: Any) -> Callable[[list[Any]], Any]:
    def noisy(batch: list[Any]) -> Any:
        return [one + rng.random() for one in batch]

    return noisy


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(own_generators, "_said", set())
    caplog.set_level(logging.WARNING, "recovery.torch")
    return lambda: [
        record.getMessage() for record in caplog.records if "event=own_generator" in record.getMessage()
    ]


@contextmanager
def torchdatas_loaders() -> Iterator[Any]:
    kind = needs_package("torchdata.stateful_dataloader").StatefulDataLoader
    with warnings.catch_warnings():
        # torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated.
        warnings.simplefilter("ignore")
        yield kind


def inside_itself() -> list[Any]:
    found: list[Any] = [1]
    found.append(found)
    return found


def resumable(dataset: Any, **options: Any) -> ResumableLoader:
    return ResumableLoader(dataset, 5, session=FakeSession(), **options)


def test_what_such_a_data_set_draws_behind_a_restart_is_not_what_it_would_have_drawn() -> None:
    undisturbed = list(resumable(Noisy(), shuffle=False))
    loader = resumable(Noisy(), shuffle=False)
    next(iter(loader))
    again = resumable(Noisy(), shuffle=False)
    again.load_state_dict(loader.state_dict())

    assert not torch.equal(next(iter(again)), undisturbed[1])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            lambda: Rows(rng=random.Random(1)),
            "Rows keeps a random generator of its own: .rng (random.Random)",
        ),
        (lambda: Rows(rng=numpy.random.default_rng(1)), ".rng (numpy.random._generator.Generator)"),
        (lambda: Rows(rng=torch.Generator()), ".rng (torch._C.Generator)"),
        (lambda: Rows(by={"noise": [0, Slotted(random.Random(1))]}), ".by['noise'][1].rng (random.Random)"),
        (lambda: Rows(by=OrderedDict(crop=random.Random(1))), ".by['crop'] (random.Random)"),
        (lambda: Rows(by={(0, 1): deque([random.Random(1)])}), ".by[tuple][0] (random.Random)"),
        (lambda: Rows(by=Pair(random.Random(1), {random.Random})), ".by[0] (random.Random)"),
        (
            lambda: Subset(Rows(rng=torch.Generator()), range(9)),
            "Subset keeps a random generator of its own: .dataset.rng",
        ),
        (OfTheClass, ".rng (numpy.random.mtrand.RandomState)"),
        (lambda: Rows(transform=collate(random.Random(1))), ".transform.rng (random.Random)"),
        (lambda: Rows(f=functools.partial(collate, random.Random(1))), ".f()[0] (random.Random)"),
        (lambda: Rows(f=random.Random(1).gauss), ".f (random.Random)"),
        (lambda: Rows(f=numpy.random.default_rng(1).normal), "numpy.random._generator.Generator"),
        (lambda: Stream(random.Random(1)), "Stream keeps a random generator of its own: .rng"),
    ],
)
def test_it_is_told_with_its_place_and_type_once_in_a_process(
    said: Callable[[], list[str]], made: Callable[[], Any], expected: str
) -> None:
    for _ in range(2):
        resumable(made())

    [text] = said()
    assert expected in text
    assert "from the item's index" in text


def test_a_collate_functions_own_is_told(said: Callable[[], list[str]]) -> None:
    resumable(Rows(), collate_fn=collate(random.Random(1)))

    [text] = said()
    assert "the collate function collate.<locals>.noisy keeps a random generator of its own: .rng" in text


class Owner:
    """Has a loader's data set, sampler and collate function, as a data module has."""

    def __init__(self, dataset: Any, sampler: Any, **held: Any) -> None:
        self.dataset, self.sampler = dataset, sampler
        self.__dict__.update(held)

    def collate(self, batch: list[Any]) -> Any:
        return torch.tensor(batch)


class Drawn(Sampler[int]):
    """Draws, and has a state."""

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def __len__(self) -> int:
        return SIZE

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def test_what_the_collate_functions_owner_has_besides_of_the_loader_is_not_told(
    said: Callable[[], list[str]],
) -> None:
    generator = torch.Generator()
    owner = Owner(Rows(), RandomSampler(range(SIZE), generator=generator))
    resumable(owner.dataset, sampler=owner.sampler, collate_fn=owner.collate)
    batches = BatchSampler(owner.sampler, 5, drop_last=False)
    ResumableLoader(owner.dataset, batch_sampler=batches, collate_fn=owner.collate, session=FakeSession())
    positioned = Owner(Positioned(random.Random(1)), None)
    resumable(positioned.dataset, collate_fn=positioned.collate)
    with torchdatas_loaders() as kind:
        # Its own generator is saved, wherever else it is held.
        owner = Owner(Rows(), None, generator=generator)
        StatefulLoader(kind(owner.dataset, shuffle=True, generator=generator, collate_fn=owner.collate))
        owner = Owner(Rows(), Drawn(random.Random(1)))
        StatefulLoader(kind(owner.dataset, sampler=owner.sampler, collate_fn=owner.collate))

    assert said() == []


def test_what_else_the_collate_functions_owner_has_is_told_and_its_data_sets_only_once(
    said: Callable[[], list[str]],
) -> None:
    noisy = Owner(Noisy(), RandomSampler(range(SIZE), generator=torch.Generator()), noise=random.Random(2))
    resumable(noisy.dataset, sampler=noisy.sampler, collate_fn=noisy.collate)

    of_data, of_collate = said()
    assert "the data set Noisy keeps a random generator of its own: .rng (random.Random). " in of_data
    assert "Owner.collate keeps a random generator of its own: .noise (random.Random). " in of_collate


def test_of_the_programs_own_generators_and_of_a_state_that_is_saved_nothing_is_said(
    said: Callable[[], list[str]],
) -> None:
    own = random.random.__self__  # type: ignore[attr-defined]  # a bound method, for typeshed a function
    resumable(Rows(one=own, two=numpy.random.mtrand._rand, three=torch.default_generator, four=random.gauss))
    resumable(Positioned(random.Random(1)))
    resumable(Rows(names=["a"] * 1_000_000, inside_itself=inside_itself()))

    assert said() == []


def test_data_set_that_copies_its_generator_in_each_pass_is_not_told() -> None:
    datasets = pytest.importorskip("datasets")
    examples = datasets.iterable_dataset.ExamplesIterable(
        lambda: ((row, {"x": row}) for row in range(50)), {}
    )
    shuffled = datasets.IterableDataset(examples).shuffle(seed=1, buffer_size=10)

    assert list(shuffled) == list(shuffled) != list(datasets.IterableDataset(examples))
    assert list(own_generators.held_by(shuffled)) == []


def test_no_code_of_what_holds_it_is_run() -> None:
    holder = Closed()
    object.__setattr__(holder, "rng", random.Random(1))
    assert list(own_generators.held_by(holder)) == [(".rng", "random.Random")]
    with pytest.raises(AssertionError, match="was asked for rng"):
        _ = holder.rng


def test_torchdatas_loader_is_looked_at_too(said: Callable[[], list[str]]) -> None:
    with torchdatas_loaders() as kind:
        StatefulLoader(kind(Noisy(), num_workers=2))
        StatefulLoader(kind(Positioned(random.Random(1))))

    [text] = said()
    assert "the data set Noisy keeps a random generator of its own: .rng" in text
