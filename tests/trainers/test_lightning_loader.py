"""A loader of the user's that is watched: wherever a pass was left, another process has the rest of it, noise included."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.lightning.watched_loader import WatchedLoader
from tests.torch.test_sampler_counters import Counting

SIZE, BATCH = 22, 4


class Noisy(Dataset[Any]):
    @override
    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, torch.rand(()).item(), random.random()

    def __len__(self) -> int:
        return SIZE


class Stream(IterableDataset[Any]):
    @override
    def __iter__(self) -> Iterator[Any]:
        yield from ((number, torch.rand(()).item(), random.random()) for number in range(SIZE))


def _loader(kind: type[Any], *, workers: int, own: bool) -> Any:
    shuffle = None if kind is Stream else True
    generator = torch.Generator().manual_seed(5) if own else None
    return DataLoader(kind(), BATCH, shuffle=shuffle, num_workers=workers, generator=generator)


def _seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)


def _plain(batch: Any) -> list[Any]:
    return [part.tolist() for part in batch]


def _steps(batches: Iterator[Any]) -> Iterator[list[Any]]:
    """A training that draws between two batches."""
    for batch in batches:
        torch.rand(2)
        random.random()
        yield _plain(batch)


CASES = [(Noisy, 0, False), (Noisy, 0, True), (Noisy, 2, False), (Noisy, 2, True), (Stream, 1, False)]


@pytest.mark.parametrize(("kind", "workers", "own"), CASES)
def test_the_rest_of_a_pass_is_the_same_wherever_it_was_left(
    kind: type[Any], workers: int, own: bool
) -> None:
    def first_pass_over() -> Any:
        _seed(1)
        plain = _loader(kind, workers=workers, own=own)
        return plain, list(_steps(iter(plain)))

    plain, _ = first_pass_over()
    second = list(_steps(iter(plain)))
    for left in (1, 3, len(second)):
        plain, _ = first_pass_over()
        watched = WatchedLoader(plain, None)
        steps = _steps(iter(watched))
        for _ in range(left - 1):
            next(steps)
        next(iter_of(watched))
        # The batch that was asked for last is not used yet.
        place = watched.place(1)
        _seed(99)
        again = WatchedLoader(_loader(kind, workers=workers, own=own), place)
        rest = list(_steps(iter(again)))
        assert rest == second[left - 1 :], f"left at batch {left}"


@pytest.mark.parametrize(("kind", "workers", "own"), CASES)
def test_what_hooks_draw_between_a_passs_begin_and_its_first_batch_is_no_other_order(
    kind: type[Any], workers: int, own: bool
) -> None:
    _seed(1)
    watched = WatchedLoader(_loader(kind, workers=workers, own=own), None)
    batches = iter(watched)
    torch.rand(3)
    next(batches)
    next(batches)
    place = watched.place(1)
    rest = [_plain(batch) for batch in batches]
    again = iter(WatchedLoader(_loader(kind, workers=workers, own=own), place))
    next(again)
    assert [_plain(batch) for batch in again] == rest


def test_a_sampler_that_counts_its_passes_goes_on_in_the_same_order() -> None:
    def watched(place: dict[str, Any] | None = None) -> WatchedLoader:
        return WatchedLoader(DataLoader(Noisy(), BATCH, sampler=Counting(SIZE)), place)

    first = watched()
    list(first)
    batches = iter(first)
    next(batches)
    next(batches)
    place = first.place(1)
    again = iter(watched(place))
    next(again)
    assert [_plain(batch)[0] for batch in again] == [_plain(batch)[0] for batch in batches]


class Backwards(Sampler[int]):
    """The order of a sampler inside it."""

    def __init__(self, inside: RandomSampler) -> None:
        self._inside = inside

    @override
    def __iter__(self) -> Iterator[int]:
        return iter([*self._inside][::-1])

    def __len__(self) -> int:
        return len(self._inside)


def _inside_another(place: dict[str, Any] | None = None) -> WatchedLoader:
    drawing = RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(5))
    return WatchedLoader(DataLoader(Noisy(), BATCH, sampler=Backwards(drawing)), place)


def _left_in_its_second_pass() -> tuple[dict[str, Any], list[Any]]:
    """Where, behind its first batch, and the order of the rest."""
    first = _inside_another()
    list(first)
    second = WatchedLoader(first._loader, None)
    batches = iter(second)
    next(batches)
    next(batches)
    return second.place(1), [_plain(batch)[0] for batch in batches]


def test_a_generator_of_a_sampler_inside_another_goes_on_where_it_was() -> None:
    place, rest = _left_in_its_second_pass()
    again = iter(_inside_another(place))
    next(again)
    assert [_plain(batch)[0] for batch in again] == rest


def test_a_place_of_an_earlier_release_that_knew_no_samplers_inside_others_is_taken() -> None:
    place, rest = _left_in_its_second_pass()
    place["begun"]["own"].clear()
    del place["order"]
    again = iter(_inside_another(place))
    next(again)
    assert sum(len(_plain(batch)[0]) for batch in again) == sum(map(len, rest))


class Anew(IterableDataset[Any]):
    """A stream in an order that another process would not draw again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(random.Random(self._seed).sample(range(SIZE), SIZE))


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("workers", [0, 1])
def test_stream_that_does_not_repeat_itself_is_an_error(workers: int, ahead: int) -> None:
    def watched(seed: int, place: dict[str, Any] | None = None) -> WatchedLoader:
        return WatchedLoader(DataLoader(Anew(seed), BATCH, num_workers=workers), place)

    first = watched(1)
    batches = iter(first)
    given = [next(batches).tolist() for _ in range(3 + ahead)]
    place = first.place(ahead)
    again = watched(1, place)
    rest = iter(again)
    assert [next(rest).tolist() for _ in range(ahead)] == given[3:]
    assert again.place(ahead)["drawn"] == place["drawn"], "saved again"
    with pytest.raises(
        CheckpointStateError,
        match=r"train_dataloaders: the pass of Anew does not repeat itself: .* its first 3 batches",
    ):
        next(iter(watched(2, place)))


def iter_of(watched: WatchedLoader) -> Iterator[Any]:
    """The pass under way."""
    batches: Iterator[Any] = watched.__dict__["_pass"]
    return batches


class Reshuffled(Sampler[int]):
    """Shuffles by a generator that no checkpoint has."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(random.Random().sample(range(SIZE), SIZE))

    def __len__(self) -> int:
        return SIZE


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [1, 2])
def test_an_order_that_does_not_repeat_itself_is_an_error(workers: int, ahead: int) -> None:
    def loader() -> Any:
        return DataLoader(Noisy(), BATCH, sampler=Reshuffled(), num_workers=workers)

    watched = WatchedLoader(loader(), None)
    batches = iter(watched)
    for _ in range(4):
        next(batches)
    place = watched.place(ahead)
    with pytest.raises(
        CheckpointStateError, match="train_dataloaders: the order that BatchSampler gives does not repeat"
    ):
        next(iter(WatchedLoader(loader(), place)))
    assert next(iter(WatchedLoader(loader(), {**place, "order": ""})))


def test_weights_of_a_sampler_that_training_changes_are_an_error_until_they_are_kept() -> None:
    def loader(weight: float) -> Any:
        weights = [weight] * 5 + [1.0] * (SIZE - 5)
        return DataLoader(Noisy(), BATCH, sampler=WeightedRandomSampler(weights, SIZE))

    _seed(1)
    batches = iter(watched := WatchedLoader(loader(9.0), None))
    received = [_plain(next(batches))[0] for _ in range(3)]
    place = watched.place(1)
    with pytest.raises(CheckpointStateError, match="does not repeat itself"):
        next(iter(WatchedLoader(loader(1.0), place)))
    assert _plain(next(iter(WatchedLoader(loader(9.0), place))))[0] == received[2]


@pytest.mark.parametrize("shuffle", [None, True])
def test_a_further_pass_of_worker_processes_that_stay_goes_on_in_its_order(shuffle: bool | None) -> None:
    def loader() -> Any:
        sampler = None if shuffle else Counting(SIZE)
        return DataLoader(
            Noisy(), BATCH, shuffle=shuffle, sampler=sampler, num_workers=1, persistent_workers=True
        )

    _seed(1)
    watched = WatchedLoader(loader(), None)
    list(iter(watched))
    batches = iter(watched)
    for _ in range(2):
        next(batches)
    place = watched.place(1)
    order = [_plain(batch)[0] for batch in batches]
    again = WatchedLoader(loader(), place)
    assert [_plain(batch)[0] for batch in again][1:] == order
    for of in (watched, again):
        # torch has no public way to end processes that stay.
        of.plain._iterator._shutdown_workers()


def test_it_shows_the_loaders_attributes_and_not_its_state() -> None:
    plain = _loader(Noisy, workers=0, own=False)
    watched = WatchedLoader(plain, None)
    assert (len(watched), watched.batch_size, watched.sampler) == (len(plain), BATCH, plain.sampler)
    watched.worker_init_fn = print
    assert plain.worker_init_fn is print
    assert not hasattr(watched, "state_dict")


def test_data_that_has_become_shorter_is_an_error_that_names_the_batch() -> None:
    watched = WatchedLoader(_loader(Noisy, workers=0, own=False), None)
    batches = iter(watched)
    for _ in range(5):
        next(batches)
    short = DataLoader(torch.utils.data.Subset(Noisy(), range(6)), BATCH)
    with pytest.raises(CheckpointStateError, match="ended before batch 4"):
        next(iter(WatchedLoader(short, watched.place(1))))
