"""Accelerate's prepared loaders of streams: what is drawn again is what was drawn, or the difference is an error."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset, WeightedRandomSampler
from typing_extensions import override

pytest.importorskip("accelerate.data_loader")

from accelerate.data_loader import prepare_data_loader, skip_first_batches

from recovery.accelerate.random_position import Generators, draw_no_seed
from recovery.errors import CheckpointStateError

pytestmark = pytest.mark.trainers

SIZE = 22


class Stream(IterableDataset[Any]):
    """In an order of its own."""

    def __init__(self, seed: int, size: int = SIZE) -> None:
        self._seed, self._size = seed, size

    @override
    def __iter__(self) -> Iterator[Any]:
        order = list(range(self._size))
        random.Random(self._seed).shuffle(order)
        return iter(map(torch.tensor, order))


PREPARED = {
    "as it is": lambda loader: loader,
    "for one rank": prepare_data_loader,
    "for a rank's part": lambda loader: prepare_data_loader(
        loader, num_processes=2, process_index=1, dispatch_batches=False
    ),
    "dispatched": lambda loader: prepare_data_loader(
        loader, torch.device("cpu"), put_on_device=True, dispatch_batches=True
    ),
}


def generators(prepared: str, stream: Stream, **options: Any) -> Generators:
    return Generators(PREPARED[prepared](DataLoader(stream, batch_size=4, **options)), field="train_dataset")


def behind(prepared: str, batches: int, **options: Any) -> tuple[Any, list[Any]]:
    """Where a pass stands, and what is left of it."""
    of = generators(prepared, Stream(1), **options)
    drawn = of.loader.__iter__()
    for _ in range(batches):
        next(drawn)
    return of.state(), [batch.tolist() for batch in drawn]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("prepared", PREPARED)
def test_a_stream_that_repeats_itself_goes_on_behind_any_batch(prepared: str, workers: int) -> None:
    for batches in (1, 2) if workers else (1, 2, 3):
        state, rest = behind(prepared, batches, num_workers=workers)
        again = generators(prepared, Stream(1), num_workers=workers)
        drawn = again.drawn_again(state, batches)
        assert drawn is not None
        assert [batch.tolist() for batch in drawn] == rest
        assert again.state()["stream"]["count"] >= batches + len(rest)


@pytest.mark.parametrize("prepared", PREPARED)
def test_a_stream_that_does_not_is_an_error_by_name(prepared: str) -> None:
    state, _ = behind(prepared, 2)
    other = generators(prepared, Stream(2)).drawn_again(state, 2)
    assert other is not None
    with pytest.raises(CheckpointStateError, match=r"train_dataset.*pass of Stream does not repeat itself"):
        next(other)
    shorter = generators(prepared, Stream(1, size=4)).drawn_again(state, 2)
    assert shorter is not None
    with pytest.raises(CheckpointStateError, match=r"train_dataset.*ended before batch"):
        next(shorter)


def test_a_folder_of_an_earlier_release_is_not_compared_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recovery")
    drawn = generators("for one rank", Stream(2)).drawn_again({}, 2)
    assert drawn is not None
    assert len(list(drawn)) == 4
    assert "event=stream_not_compared batches=2" in caplog.text


class ByLoss(Sampler[int]):
    """A user's own."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(2))

    def __len__(self) -> int:
        return 2


def test_a_sampler_whose_order_nobody_compares_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recovery")
    data = TensorDataset(torch.arange(2))
    for sampler in (None, WeightedRandomSampler([1.0, 1.0], 2), ByLoss(), ByLoss()):
        Generators(prepare_data_loader(DataLoader(data, sampler=sampler)))
    Generators(prepare_data_loader(DataLoader(data, shuffle=True), use_seedable_sampler=True))
    said = [line for line in caplog.messages if "event=order_not_compared" in line]
    assert [line.split()[1] for line in said] == ["samplers=WeightedRandomSampler", "samplers=ByLoss"]


def test_a_further_pass_of_worker_processes_that_stay_goes_on_in_its_order() -> None:
    """Torch draws a seed for them in the first pass, and in no later one; the order comes from the same generator."""

    def made() -> Generators:
        data = TensorDataset(torch.arange(8))
        return Generators(
            prepare_data_loader(DataLoader(data, 2, shuffle=True, num_workers=1, persistent_workers=True))
        )

    def order(loader: Any) -> list[Any]:
        return [batch[0].tolist() for batch in loader]

    torch.manual_seed(1)
    plain, again = made(), made()
    order(plain.loader)
    begun = plain.state()
    second, third = order(plain.loader), order(plain.loader)

    again.keep_workers()
    again.restore(begun)
    rest = skip_first_batches(again.loader, 1)
    draw_no_seed(rest)
    assert (order(rest), order(again.loader)) == (second[1:], third)
    for loader in (plain.loader, again.loader, rest):
        loader.base_dataloader._iterator._shutdown_workers()


def test_a_set_with_indexes_is_left_out_by_number() -> None:
    assert (
        Generators(prepare_data_loader(DataLoader(TensorDataset(torch.arange(2))))).drawn_again({}, 1) is None
    )
