"""Whatever the loader and wherever the save: the samples that follow are those of an undisturbed run."""

from __future__ import annotations

import inspect
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import psutil
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from typing_extensions import override

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import ResumableLoader
from recovery.torch.random_state import capture_random_state, restore_random_state
from tests.torch.fake_session import FakeSession

_made: list[ResumableLoader] = []

EPOCHS = 3
SIZE = 23
"""Two ranks have 12 samples each, one of them by wrapping. In batches of 5 the last is ragged."""


class Noisy(Dataset[Any]):
    @override
    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(numpy.random.random()), torch.rand(()).item()

    def __len__(self) -> int:
        return SIZE


class OwnNoise(Noisy):
    """Draws, in a worker process, from a generator that it seeds by the worker's seed."""

    @override
    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        info = get_worker_info()
        noise = numpy.random.default_rng((info.seed if info else 0, index))
        return index, *noise.random(3).tolist()


class Stream(IterableDataset[Any]):
    """Shuffles through a buffer, with every generator, between the steps."""

    @override
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        left = list(range(info.id if info else 0, SIZE, info.num_workers if info else 1))
        while left:
            yield left.pop(random.randrange(len(left))), torch.rand(()).item(), float(numpy.random.random())


class Positioned(IterableDataset[Any]):
    """Brings its own state, and draws noise besides."""

    def __init__(self) -> None:
        self._at = 0
        self._resumed = False

    @override
    def __iter__(self) -> Iterator[Any]:
        if not self._resumed:
            self._at = 0
        self._resumed = False
        while self._at < SIZE:
            self._at += 1
            yield self._at - 1, random.random(), torch.rand(()).item()

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at, self._resumed = state["at"], True


CASES: list[tuple[type[Any], int]] = [(kind, workers) for kind in (Noisy, Stream) for workers in (0, 1, 2)]
CASES += [(OwnNoise, 2), (Positioned, 0)]


def _loader(kind: type[Any], workers: int, rank: int = 0) -> ResumableLoader:
    loader = ResumableLoader(kind(), 5, session=FakeSession(rank, 2), num_workers=workers, seed=3)
    _made.append(loader)
    return loader


@pytest.fixture(autouse=True)
def _no_worker_process_outlives_its_test() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def _plain(batch: Any) -> list[Any]:
    return [part.tolist() for part in batch]


def _run(loader: ResumableLoader, epochs: int) -> Iterator[list[Any]]:
    """A training that draws between two batches, as dropout does."""
    for _ in range(epochs):
        for batch in loader:
            random.random()
            torch.rand(3)
            yield _plain(batch)


def _seed() -> None:
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


def _elsewhere() -> None:
    """Another process: all generators stand elsewhere."""
    random.seed(99)
    numpy.random.seed(99)
    torch.manual_seed(99)


@pytest.mark.parametrize(("kind", "workers"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_continues_at_the_next_batch_wherever_it_was_saved(kind: type[Any], workers: int) -> None:
    _seed()
    undisturbed = list(_run(_loader(kind, workers), EPOCHS))
    per_epoch = len(undisturbed) // EPOCHS
    ends = [1, per_epoch, per_epoch + 2] if workers else range(1, 2 * per_epoch + 1)
    for steps in ends:
        _seed()
        loader = _loader(kind, workers)
        run = _run(loader, EPOCHS)
        before = [next(run) for _ in range(steps)]
        state, generators = loader.state_dict(), capture_random_state()
        loader.close()
        _elsewhere()
        again = _loader(kind, workers)
        again.load_state_dict(state)
        again.prime()
        restore_random_state(generators)
        after = list(_run(again, EPOCHS - state["epoch"]))
        assert before + after == undisturbed, f"saved after {steps} batches"


def test_saved_between_two_epochs_it_begins_the_next() -> None:
    loader = _loader(Noisy, 0)
    first = [batch[0].tolist() for batch in loader]
    state = loader.state_dict()
    second = [batch[0].tolist() for batch in loader]
    again = _loader(Noisy, 0)
    again.load_state_dict(state)
    assert [batch[0].tolist() for batch in again] == second != first


@pytest.mark.parametrize(("kind", "workers"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_saved_between_two_epochs_the_next_is_that_of_an_undisturbed_run(
    kind: type[Any], workers: int
) -> None:
    _seed()
    undisturbed = list(_run(_loader(kind, workers), 2))
    _seed()
    loader = _loader(kind, workers)
    before = list(_run(loader, 1))
    state, generators = loader.state_dict(), capture_random_state()
    assert (state["epoch"], state["received"]) == (1, 0)
    _elsewhere()
    again = _loader(kind, workers)
    again.load_state_dict(state)
    again.prime()
    restore_random_state(generators)
    assert before + list(_run(again, 1)) == undisturbed


class Counted(Stream):
    """An iterable data set that knows its length."""

    def __len__(self) -> int:
        return SIZE


@pytest.mark.parametrize("kind", [Noisy, Counted])
def test_a_loop_that_stops_at_the_length_has_whole_epochs(kind: type[Any]) -> None:
    _seed()
    exhausted = list(_run(_loader(kind, 0), EPOCHS))
    _seed()
    loader, batches = _loader(kind, 0), []
    for _ in range(EPOCHS):
        # The length ends it, so the loader is never asked for a batch behind its last one.
        for _, batch in zip(range(len(loader)), loader, strict=False):
            random.random()
            torch.rand(3)
            batches.append(_plain(batch))
    assert batches == exhausted


def test_a_loop_of_that_kind_that_comes_back_to_an_epochs_end_has_the_next_one_whole() -> None:
    loader = _loader(Noisy, 0)
    first = [batch[0].tolist() for _, batch in zip(range(len(loader)), loader, strict=False)]
    again = _loader(Noisy, 0)
    again.load_state_dict(loader.state_dict())
    assert not list(zip(range(0), again, strict=False)), "nothing is left of the epoch"
    second = [batch[0].tolist() for _, batch in zip(range(len(again)), again, strict=False)]
    assert len(second) == len(first)
    assert second != first


def test_an_iteration_that_was_left_at_an_epochs_end_does_not_end_the_next_one() -> None:
    loader = _loader(Noisy, 0)
    left = iter(loader)
    for _ in range(len(loader)):
        next(left)
    next(iter(loader))
    assert next(left, None) is None
    assert (loader.epoch, loader.batch) == (1, 1)


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_the_data_as_the_distributed_sampler_does(drop_last: bool) -> None:
    for world_size in (1, 2, 3, 4, 30):
        shares = [
            [
                number
                for batch in ResumableLoader(
                    Noisy(), 1, session=FakeSession(rank, world_size), shuffle=False, drop_last=drop_last
                )
                for number in batch[0].tolist()
            ]
            for rank in range(world_size)
        ]
        theirs: list[list[int]] = [
            list(
                torch.utils.data.DistributedSampler(
                    Noisy(), world_size, rank, shuffle=False, drop_last=drop_last
                )
            )
            if world_size <= SIZE or not drop_last
            else []
            for rank in range(world_size)
        ]
        assert shares == theirs


def test_ranks_draw_different_noise_in_their_worker_processes() -> None:
    first, second = (next(iter(_loader(Noisy, 1, rank))) for rank in (0, 1))
    assert first[1].tolist() != second[1].tolist()


@pytest.mark.parametrize("kind", [Noisy, Stream])
def test_draws_nothing_from_the_programs_generators(kind: type[Any]) -> None:
    before = repr(capture_random_state())
    loader = _loader(kind, 1 if kind is Noisy else 0)
    next(iter(loader))
    loader.close()
    assert repr(capture_random_state()) == before


def test_two_loaders_in_one_loop_each_know_their_place() -> None:
    def steps(first: ResumableLoader, second: ResumableLoader) -> Iterator[list[Any]]:
        others = iter(second)
        for _ in range(EPOCHS):
            for batch in first:
                try:
                    other = next(others)
                except StopIteration:
                    others = iter(second)
                    other = next(others)
                yield [batch[0].tolist(), other[0].tolist()]

    def pair() -> tuple[ResumableLoader, ResumableLoader]:
        return _loader(Noisy, 0), ResumableLoader(Noisy(), 7, session=FakeSession(1, 2), seed=8)

    undisturbed = list(steps(*pair()))
    for saved in range(1, 7):
        loaders = pair()
        run = steps(*loaders)
        before = [next(run) for _ in range(saved)]
        again = pair()
        for old, new in zip(loaders, again, strict=True):
            new.load_state_dict(old.state_dict())
        missing = EPOCHS - loaders[0].state_dict()["epoch"]
        after = list(steps(*again))[: len(undisturbed) - saved]
        assert missing >= 1
        assert before + after == undisturbed


def test_closing_ends_the_worker_processes_of_an_iteration_that_was_left() -> None:
    # Another test's resource tracker stays.
    before = psutil.Process().children(recursive=True)
    loader = _loader(Noisy, 2)
    next(iter(loader))
    workers = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert workers
    loader.close()
    assert not psutil.wait_procs(workers, timeout=60)[1]


def test_the_session_closes_it_at_the_end_of_its_generation() -> None:
    before = psutil.Process().children(recursive=True)
    face = FakeSession()
    loader = ResumableLoader(Noisy(), 5, session=face, num_workers=1)
    next(iter(loader))
    workers = [child for child in psutil.Process().children(recursive=True) if child not in before]
    face.close()
    assert not psutil.wait_procs(workers, timeout=60)[1]


def test_a_data_set_that_has_become_shorter_is_an_error_that_names_the_batch() -> None:
    loader = _loader(Stream, 0)
    loader.load_state_dict({"epoch": 0, "received": 50})
    with pytest.raises(CheckpointStateError, match="batch 50"):
        loader.prime()


def test_a_stream_has_no_length() -> None:
    with pytest.raises(TypeError):
        len(_loader(Stream, 0))
    assert _loader(Stream, 0).length is None


class Unsure(Stream):
    def __len__(self) -> int:
        raise NotImplementedError


def test_a_stream_that_does_not_know_its_length_has_none() -> None:
    assert _loader(Unsure, 0).length is None
    # list() would ask for it.
    assert sum(1 for _ in _loader(Unsure, 0)) == sum(1 for _ in _loader(Stream, 0))


@pytest.mark.parametrize("options", [{"generator": torch.Generator()}, {"in_order": False}])
def test_parameters_that_would_take_the_order_away_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"takes no \['{next(iter(options))}'\]"):
        ResumableLoader(Noisy(), session=FakeSession(), **options)


def test_a_step_costs_a_few_calls_more_than_a_plain_loader_wherever_it_is() -> None:
    class Numbers(Dataset[Any]):
        @override
        def __getitem__(self, index: int) -> int:
            return index

        def __len__(self) -> int:
            return 5_000

    calls, own = Counter[str](), str(Path(inspect.getfile(ResumableLoader)).parent)

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(own):
            calls["ours"] += 1

    def costs(batches: Iterator[Any], count: int) -> float:
        """Calls of and in our own code, a batch."""
        before = calls["ours"]
        for _ in range(count):
            next(batches)
        return (calls["ours"] - before) / count

    batches = iter(ResumableLoader(Numbers(), 8, session=FakeSession()))
    next(batches)
    sys.setprofile(note)
    try:
        early, late = costs(batches, 100), costs(batches, 500)
    finally:
        sys.setprofile(None)
    assert late <= early <= 12
