"""With keyed generators a process that was started a moment ago goes on with the batch that the dead one would have had next.

It knows its key (seed, rank, step) and the position that another rank was at. Nothing else of the dead process is left.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import ResumableLoader
from recovery.torch.keyed import key_generators
from tests.torch.fake_session import FakeSession

SEED, EPOCHS = 41, 3
SIZE = 23
"""Two ranks have 12 samples each of a map-style data set. In batches of 5 the last of an epoch is ragged."""

_made: list[ResumableLoader] = []


def _noise() -> list[float]:
    return [random.gauss(0, 1), float(numpy.random.random()), torch.randn(()).item()]


class Augmented(Dataset[Any]):
    @override
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return index, *_noise()

    def __len__(self) -> int:
        return SIZE


class Lines(IterableDataset[Any]):
    """In order, with noise."""

    def _mine(self) -> list[int]:
        info = get_worker_info()
        return list(range(info.id if info else 0, SIZE, info.num_workers if info else 1))

    @override
    def __iter__(self) -> Iterator[Any]:
        for line in self._mine():
            yield line, *_noise()


class Buffered(Lines):
    """Shuffles through a buffer of six."""

    @override
    def __iter__(self) -> Iterator[Any]:
        buffer: list[int] = []
        for line in self._mine():
            buffer.append(line)
            if len(buffer) > 6:
                yield buffer.pop(random.randrange(len(buffer))), *_noise()
        random.shuffle(buffer)
        for line in buffer:
            yield line, *_noise()


class Positioned(Lines):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_worker_process_outlives_its_test() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def _loader(
    kind: type[Any], workers: int = 0, rank: int = 0, number: int = 0, batch_size: int = 5
) -> ResumableLoader:
    loader = ResumableLoader(
        kind(), batch_size, session=FakeSession(rank, 2), num_workers=workers, seed=3 + number
    )
    loader.follow_keys(SEED, number)
    _made.append(loader)
    return loader


def _plain(batch: Any) -> list[Any]:
    return [part.tolist() for part in batch]


def _elsewhere() -> None:
    """Another process: all generators stand elsewhere."""
    random.seed(99)
    numpy.random.seed(99)
    torch.manual_seed(99)


def _train(loader: ResumableLoader, rank: int, step: int = 0) -> Iterator[list[Any]]:
    """From the boundary of `step` on: each batch, and what training draws behind it. As dropout does, it draws in every step."""
    key_generators(SEED, rank, step)
    while loader.state_dict()["epoch"] < EPOCHS:
        for batch in loader:
            yield [*_plain(batch), _noise()]
            _noise()
            step += 1
            key_generators(SEED, rank, step)


def _train_on_two(
    first: ResumableLoader, second: ResumableLoader, rank: int, step: int = 0
) -> Iterator[list[Any]]:
    """The second is shorter and begins again whenever it ends, in the middle of an epoch of the first."""
    key_generators(SEED, rank, step)
    others = iter(second)
    while first.state_dict()["epoch"] < EPOCHS:
        for batch in first:
            other = next(others, None)
            if other is None:
                others = iter(second)
                other = next(others)
            yield [*_plain(batch), *_plain(other), _noise()]
            step += 1
            key_generators(SEED, rank, step)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Augmented, Lines, Buffered])
def test_a_fresh_process_has_the_next_batches_of_the_dead_one(kind: type[Any], workers: int) -> None:
    """After every step: at an epoch's boundary, before and behind its ragged last batch, and at the start."""
    undisturbed = list(_train(_loader(kind, workers, rank=1), 1))
    per_epoch = len(undisturbed) // EPOCHS
    assert len(undisturbed[per_epoch - 1][0]) < len(undisturbed[0][0]), "the last batch is ragged"
    survivor = _loader(kind, workers)
    steps = _train(survivor, 0)
    deaths = (1, per_epoch - 1, per_epoch, per_epoch + 2) if workers else range(len(undisturbed))
    positions = {0: survivor.position}
    for step, _ in enumerate(steps, start=1):
        positions[step] = survivor.position
    for step in deaths:
        _elsewhere()
        fresh = _loader(kind, workers, rank=1)
        fresh.load_position(positions[step])
        fresh.prime()
        assert list(_train(fresh, 1, step)) == undisturbed[step:], f"after step {step}"


@pytest.mark.parametrize("kinds", [(Augmented, Augmented), (Augmented, Buffered), (Buffered, Lines)])
def test_a_fresh_process_has_the_next_batches_of_two_loaders(kinds: tuple[type[Any], type[Any]]) -> None:
    def pair(rank: int) -> tuple[ResumableLoader, ResumableLoader]:
        return _loader(kinds[0], rank=rank), _loader(kinds[1], rank=rank, number=1, batch_size=7)

    undisturbed = list(_train_on_two(*pair(1), 1))
    survivors = pair(0)
    positions = [[loader.state_dict() for loader in survivors] for _ in _train_on_two(*survivors, 0)]
    restarted_within = [
        after[0]["received"] > 1
        for before, after in itertools.pairwise(positions)
        if before[1]["epoch"] < after[1]["epoch"]
    ]
    assert any(restarted_within), "the second began again within an epoch of the first"
    for step, states in enumerate(positions, start=1):
        _elsewhere()
        fresh = pair(1)
        for loader, state in zip(fresh, states, strict=True):
            loader.load_position(state)
            loader.prime()
        assert list(_train_on_two(*fresh, 1, step)) == undisturbed[step:], f"after step {step}"


def test_it_holds_in_a_process_that_has_done_nothing_else() -> None:
    program = (
        "import json, sys; from tests.torch import test_keyed_loader as t\n"
        "loader = t._loader(t.Buffered, rank=1); loader.load_position({'epoch': 1, 'received': 2}); loader.prime()\n"
        "json.dump(list(t._train(loader, 1, 7)), sys.stdout)\n"
    )
    undisturbed = list(_train(_loader(Buffered, rank=1), 1))
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(told.stdout) == undisturbed[7:]


def test_streams_differ_between_loaders_and_epochs_and_not_between_ranks_that_were_seeded_alike() -> None:
    orders = [
        tuple(line for batch in loader for line in batch[0].tolist())
        for loader in (_loader(Buffered), _loader(Buffered, rank=1), _loader(Buffered, number=1))
        for _ in range(2)
    ]
    assert len(set(orders)) == 4


def test_streams_do_not_follow_from_the_programs_generators() -> None:
    first = [_plain(batch) for batch in _loader(Buffered)]
    _elsewhere()
    assert [_plain(batch) for batch in _loader(Buffered)] == first


def test_a_position_says_of_which_division_of_the_data_it_is() -> None:
    loader = _loader(Buffered)
    batches = iter(loader)
    next(batches)
    assert loader.position.items() >= {"epoch": 0, "received": 1}.items()
    other = _loader(Buffered, batch_size=4)
    with pytest.raises(CheckpointStateError, match="batch_size was 5 and is 4"):
        other.load_position({**loader.position, "of": loader.division()})


def test_a_data_set_with_a_state_of_its_own_cannot_be_derived_and_says_so() -> None:
    assert "Positioned" in _loader(Positioned).why_not_derivable
    assert [_loader(kind).why_not_derivable for kind in (Augmented, Lines, Buffered)] == ["", "", ""]


def test_a_checkpoint_of_the_other_mode_keeps_its_order_until_the_epoch_ends() -> None:
    """Another order for the rest of the epoch would show samples twice and leave others out."""
    loader = ResumableLoader(Buffered(), 5, session=FakeSession(0, 2), seed=3)
    whole = [_plain(next(batches)) for batches in [iter(loader)] for _ in range(2)]
    state = loader.state_dict()
    whole += [_plain(batch) for batch in loader]
    again = _loader(Buffered)
    again.load_state_dict(state)
    assert "MS_ROLLBACK" in again.why_not_derivable
    assert [_plain(batch) for batch in again] == whole[2:]
    next(iter(again))
    assert again.why_not_derivable == ""


def test_a_checkpoint_of_this_mode_is_derivable() -> None:
    loader = _loader(Buffered)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [_plain(batch) for batch in batches]
    again = _loader(Buffered)
    again.load_state_dict(state)
    assert again.why_not_derivable == ""
    assert [_plain(batch) for batch in again] == rest
