"""A sampler of the user's: every sample of a pass is used exactly once, wherever it was left, or the sampler is refused by name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import ResumableLoader, TrainState
from recovery.torch.random_state import capture_random_state
from tests.torch.fake_session import FakeSession

SIZE, EPOCHS = 48, 3


class Noisy(Dataset[Any]):
    @override
    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(numpy.random.random()), torch.rand(()).item()

    def __len__(self) -> int:
        return SIZE


class Grouped(Sampler[list[int]]):
    """Batches of samples of about one length, of two and three in turn, in an order that is drawn from every generator."""

    @override
    def __iter__(self) -> Iterator[list[int]]:
        by_length = sorted(range(SIZE), key=lambda index: index * 7 % 11)
        ends = numpy.cumsum([2, 3] * 10).tolist()
        groups = [
            by_length[begin:end]
            for begin, end in zip([0, *ends], [*ends, SIZE], strict=False)
            if begin < SIZE
        ]
        random.shuffle(groups)
        numpy.random.shuffle(groups)
        yield from (groups[number] for number in torch.randperm(len(groups)).tolist())

    def __len__(self) -> int:
        return 20


class Told(Sampler[int]):
    """In an order that follows from what it is told, as DistributedSampler's."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @override
    def __iter__(self) -> Iterator[int]:
        order = list(range(SIZE))
        random.Random(self.epoch).shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return SIZE


def own() -> torch.Generator:
    """Another state in each process and on each rank, as of who forgets to seed it."""
    generator = torch.Generator()
    generator.seed()
    return generator


def share(rank: int, world_size: int = 2, **options: Any) -> DistributedSampler[Any]:
    return DistributedSampler(Noisy(), world_size, rank, **options)


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "random": lambda _: {"sampler": RandomSampler(Noisy())},
    "random, of a generator": lambda _: {"sampler": RandomSampler(Noisy(), generator=own())},
    "a subset": lambda _: {"sampler": SubsetRandomSampler(range(SIZE), generator=own())},
    "told its pass": lambda _: {"sampler": Told()},
    "a list": lambda _: {"sampler": list(range(SIZE))[::-1]},
    "a share": lambda rank: {"sampler": share(rank)},
    "groups": lambda _: {"batch_sampler": Grouped()},
    "batches of a sampler": lambda _: {
        "batch_sampler": BatchSampler(RandomSampler(Noisy(), generator=own()), 4, False)
    },
    "batches of a share": lambda rank: {"batch_sampler": BatchSampler(share(rank), 4, False)},
    "workers that stay": lambda _: {"num_workers": 2, "persistent_workers": True},
    "groups, workers that stay": lambda _: {
        "batch_sampler": Grouped(),
        "num_workers": 2,
        "persistent_workers": True,
    },
}


def loader(rank: int = 0, world_size: int = 2, **options: Any) -> ResumableLoader:
    if "batch_sampler" not in options:
        options.setdefault("batch_size", 5)
    return ResumableLoader(Noisy(), session=FakeSession(rank, world_size), seed=3, **options)


def run(of: ResumableLoader) -> Iterator[list[Any]]:
    """A training that draws between two batches."""
    while of.epoch < EPOCHS:
        for batch in of:
            random.random()
            torch.rand(3)
            yield [part.tolist() for part in batch]


def seed(number: int) -> None:
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def saved(of: ResumableLoader, file: Path) -> Path:
    with file.open("wb") as stream:
        TrainState(model=nn.Identity(), loader=of).write(stream)
    of.close()
    return file


def resumed(file: Path, into: ResumableLoader) -> ResumableLoader:
    TrainState(model=nn.Identity(), loader=into).read(file)
    return into


@pytest.mark.parametrize("case", CASES)
def test_every_sample_is_used_once_by_the_ranks_wherever_one_was_left(case: str, tmp_path: Path) -> None:
    used = []
    for rank in range(2):
        seed(rank)
        whole = loader(rank, **CASES[case](rank))
        undisturbed = list(run(whole))
        in_a_pass = len(undisturbed) // EPOCHS
        assert in_a_pass == len(whole)
        whole.close()
        for after in (1, in_a_pass, in_a_pass + 2):
            seed(rank)
            first = loader(rank, **CASES[case](rank))
            batches = run(first)
            got = [next(batches) for _ in range(after)]
            file = saved(first, tmp_path / "saved")
            seed(99)
            again = resumed(file, loader(rank, **CASES[case](rank)))
            got += run(again)
            again.close()
            assert got == undisturbed, f"left behind {after} batches"
        used.append(
            [
                [index for batch in undisturbed[at : at + in_a_pass] for index in batch[0]]
                for at in range(0, len(undisturbed), in_a_pass)
            ]
        )
    for both in zip(*used, strict=True):
        assert Counter(both[0] + both[1]) == Counter(range(SIZE))
    if case not in ("a list",):
        assert used[0][0] != used[0][1] != used[0][2], "every pass has an order of its own"


def test_draws_with_replacement_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    def made() -> ResumableLoader:
        return loader(sampler=WeightedRandomSampler(list(map(float, range(SIZE))), 2 * SIZE, generator=own()))

    undisturbed = [batch[0] for batch in run(made())]
    first = made()
    batches = run(first)
    got = [next(batches)[0] for _ in range(13)]
    got += [batch[0] for batch in run(resumed(saved(first, tmp_path / "saved"), made()))]
    assert got == undisturbed
    assert 0 not in {index for batch in got for index in batch}, "of weight 0"


def test_nothing_is_drawn_from_the_programs_generators_or_the_samplers() -> None:
    generator = own()
    before = repr(capture_random_state()), generator.get_state().tolist()
    len(loader(batch_sampler=BatchSampler(RandomSampler(Noisy(), generator=generator), 4, False)))
    len(loader(batch_sampler=Grouped()))
    assert (repr(capture_random_state()), generator.get_state().tolist()) == before


def test_a_length_that_is_drawn_is_that_of_the_order_and_leaves_the_generators_alone() -> None:
    class Buckets(Sampler[list[int]]):
        """Makes its batches to say how many there are."""

        @override
        def __iter__(self) -> Iterator[list[int]]:
            begin = 0
            while begin < SIZE:
                size = random.randint(1, 9)
                yield list(range(begin, min(SIZE, begin + size)))
                begin += size

        def __len__(self) -> int:
            return sum(1 for _ in self)

    before = repr(capture_random_state())
    assert list(loader(batch_sampler=Buckets()).rest())
    assert repr(capture_random_state()) == before


def test_indices_may_be_arrays_and_an_index_any_key() -> None:
    class Sized(Dataset[Any]):
        @override
        def __getitem__(self, key: Any) -> Any:
            return key

    def first(**options: Any) -> Any:
        return next(iter(ResumableLoader(Sized(), session=FakeSession(), collate_fn=list, **options)))

    assert first(sampler=torch.arange(3), drop_last=False, batch_size=2) == [0, 1]
    assert first(sampler=[(3, "large"), (4, "small")], batch_size=2) == [(3, "large"), (4, "small")]
    assert first(batch_sampler=[numpy.array([4, 2]), [numpy.int64(1)]]) == [4, 2]


# --- another division -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_another_batch_size_and_another_number_of_worker_processes_use_every_sample_once(
    workers: int, tmp_path: Path
) -> None:
    used = []
    for rank in range(2):
        first = loader(rank, sampler=RandomSampler(Noisy()), batch_size=4, num_workers=2)
        batches = run(first)
        rows = [index for _ in range(2) for index in next(batches)[0]]
        file = saved(first, tmp_path / "saved")
        again = resumed(
            file,
            loader(rank, sampler=RandomSampler(Noisy()), batch_size=3, num_workers=workers, redivide=True),
        )
        used += rows + [index for batch in again for index in batch[0].tolist()]
        again.close()
    assert Counter(used) == Counter(range(SIZE))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_sampler": Grouped()}, "sampler was BatchSampler and is Grouped"),
        ({"batch_size": 4, "shuffle": False}, "sampler was BatchSampler and is None"),
        ({"batch_size": 4, "sampler": Told()}, "sampler was BatchSampler and is Told"),
    ],
)
def test_in_a_pass_another_order_is_refused_by_name(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    first = loader(batch_sampler=BatchSampler(range(SIZE), 4, False))
    batches = run(first)
    next(batches), next(batches)
    file = saved(first, tmp_path / "saved")
    with pytest.raises(CheckpointStateError, match=f"^CHECKPOINT_STATE: ResumableLoader: .*{said}"):
        resumed(file, loader(**change, redivide=True))


def test_a_sampler_whose_weights_are_in_the_state_is_asked_when_they_are_back(tmp_path: Path) -> None:
    class Weighted(WeightedRandomSampler):
        def state_dict(self) -> dict[str, Any]:
            return {"weights": self.weights}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.weights = state["weights"]

    def state_of(sampler: Weighted) -> TrainState:
        return TrainState(model=nn.Identity(), loader=loader(sampler=sampler), sampler=sampler)

    learned, fresh = Weighted(torch.rand(SIZE).tolist(), SIZE), Weighted([1.0] * SIZE, SIZE)
    state = state_of(learned)
    batches = iter(state.batches)
    next(batches)
    with (tmp_path / "saved").open("wb") as stream:
        state.write(stream)
    again = state_of(fresh)
    assert len(again.batches) == len(state.batches), "asked before its weights are back"  # type: ignore[arg-type]  # of a ResumableLoader
    again.read(tmp_path / "saved")
    assert [batch[0].tolist() for batch in again.batches] == [batch[0].tolist() for batch in batches]


def loader_left(sampler: Any) -> ResumableLoader:
    left = loader(sampler=sampler)
    next(iter(left))
    return left


# --- live rollback --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if "stay" not in case])
def test_another_ranks_position_is_a_position_here(case: str) -> None:
    given, mine, taking = (loader(rank, **CASES[case](rank)) for rank in (0, 1, 1))
    next(iter(given))
    batches = iter(mine)
    next(batches)
    assert mine.position == given.position, "what ranks that stand at one step say of it is compared"
    taking.follow_keys(1, 0)
    assert not taking.why_not_derivable
    taking.load_position({**given.position, "of": given.division()})
    taking.prime()
    assert [batch[0].tolist() for batch in taking] == [batch[0].tolist() for batch in batches]


def test_another_ranks_position_in_another_order_is_refused() -> None:
    given, taking = loader_left(list(range(SIZE))), loader(1, sampler=list(range(SIZE))[::-1])
    taking.follow_keys(1, 0)
    taking.load_position({**given.position, "of": given.division()})
    with pytest.raises(CheckpointStateError, match="its list gives another order"):
        taking.prime()


# --- worker processes that stay -------------------------------------------------------------------------------------------


def test_workers_that_stay_are_the_same_in_every_pass_and_end_with_the_generation() -> None:
    before = psutil.Process().children(recursive=True)

    def workers() -> list[psutil.Process]:
        return [child for child in psutil.Process().children(recursive=True) if child not in before]

    session = FakeSession()
    staying = ResumableLoader(Noisy(), 16, session=session, num_workers=2, persistent_workers=True)
    seen = []
    for _ in range(3):
        for _ in staying:
            pass
        seen.append(workers())
    next(iter(staying))
    assert len(staying) == 3
    assert staying.batch == 1
    next(iter(staying))
    assert staying.batch == 2
    assert len(seen[0]) >= 2
    assert seen == [workers()] * 3
    session.close()
    assert not psutil.wait_procs(seen[0], timeout=60)[1]
