"""A loader with a position of its own, torchdata's or the user's: passes are counted around it, and every sample is used exactly once."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from typing_extensions import override

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import TrainState
from recovery.training import current
from tests.needs import needs_package
from tests.torch.fake_session import FakeSession

# torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")

SIZE = 23
EPOCHS = 3


class Own:
    """Batches of four numbers in an order of its own, which follows from the pass. It has no length."""

    size = SIZE

    def __init__(self) -> None:
        self._pass, self._at, self._goes_on = 0, 0, False

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self._goes_on:
            self._pass, self._at = self._pass + 1, 0
        self._goes_on = False
        order = list(range(self.size))
        random.Random(self._pass).shuffle(order)
        while self._at < self.size:
            numbers = torch.tensor(order[self._at : self._at + 4])
            self._at += 4
            yield numbers

    def state_dict(self) -> dict[str, Any]:
        return {"pass": self._pass, "at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pass, self._at, self._goes_on = state["pass"], state["at"], True


class Numbers(Dataset[Any]):
    """Without worker processes its noise comes from the program's generators."""

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, 0.0 if get_worker_info() else random.random()], dtype=torch.float64)

    def __len__(self) -> int:
        return SIZE


class Stream(IterableDataset[Any]):
    """Has no state: what was used is drawn again."""

    @override
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(info.id if info else 0, SIZE, info.num_workers if info else 1)


class StreamWithState(Stream):
    def __init__(self) -> None:
        self._at, self._goes_on = 0, False

    @override
    def __iter__(self) -> Iterator[int]:
        if not self._goes_on:
            self._at = 0
        self._goes_on = False
        info = get_worker_info()
        while self._at * 2 < SIZE + 1:
            self._at += 1
            yield self._at * 2 + (info.id if info else 0)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at, self._goes_on = state["at"], True


def torchs(data: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        package = needs_package("torchdata.stateful_dataloader")
        given = {"batch_size": 4, **options}
        return package.StatefulDataLoader(data(), **given)

    return make


def shared(**options: Any) -> Callable[[], Any]:
    return torchs(Numbers, sampler=DistributedSampler(Numbers(), 2, 1, seed=5), **options)


def of_one_generator(**options: Any) -> Callable[[], Any]:
    """Order and worker seeds are drawn from it in turn."""

    def make() -> Any:
        return torchs(Numbers, shuffle=True, generator=torch.Generator().manual_seed(5), **options)()

    return make


CASES: dict[str, Callable[[], Any]] = {
    "own": Own,
    "shuffled, of a generator": of_one_generator(),
    "shuffled, of a generator, two workers": of_one_generator(num_workers=2),
    "shuffled": torchs(Numbers, shuffle=True),
    "shuffled, two workers": torchs(Numbers, shuffle=True, num_workers=2),
    "workers that stay": torchs(Numbers, shuffle=True, num_workers=2, persistent_workers=True),
    "a state every third batch": torchs(Numbers, shuffle=True, num_workers=2, snapshot_every_n_steps=3),
    "a share of the rank": shared(),
    "a share of the rank, two workers": shared(num_workers=2),
    "stream": torchs(Stream),
    "stream, two workers": torchs(Stream, num_workers=2),
    "stream with a state": torchs(StreamWithState),
    "stream with a state, two workers": torchs(StreamWithState, num_workers=2),
}


def state_of(loader: Any) -> TrainState:
    return TrainState(model=nn.Linear(1, 1), loader=loader)


def close(state: TrainState) -> None:
    state.batches.close()  # type: ignore[attr-defined]  # of torch's loaders


def epochs_of(state: TrainState, first: int = 0) -> Iterator[Any]:
    """As `Session.steps` draws, with a training that draws between two batches."""
    for epoch in range(first, EPOCHS):
        for batch in state.batches:
            yield epoch, batch.tolist(), random.random()


def seed(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)


@pytest.mark.parametrize("case", CASES)
def test_every_sample_is_used_once_wherever_it_was_saved_and_saved_again(case: str, tmp_path: Path) -> None:
    seed(1)
    whole = state_of(CASES[case]())
    undisturbed = list(epochs_of(whole))
    close(whole)
    in_a_pass = len(undisturbed) // EPOCHS
    orders = [[batch for epoch, batch, _ in undisturbed if epoch == number] for number in range(EPOCHS)]
    if "stream" not in case:
        assert orders[0] != orders[1] != orders[2]
    # In a pass twice, from its end on, at its end, and over its end.
    places = [(2, 1), (in_a_pass, 1), (2, in_a_pass - 2), (in_a_pass - 1, 2), (in_a_pass + 1, 2)]
    for first, second in places[: 2 if "workers" in case else None]:
        seed(1)
        state, got, number = state_of(CASES[case]()), list[Any](), 0
        for steps in (first, second):
            run = epochs_of(state, number)
            got += [next(run) for _ in range(steps)]
            number = got[-1][0]
            with (tmp_path / "saved").open("wb") as stream:
                state.write(stream)
            close(state)
            seed(99)
            state = state_of(CASES[case]())
            state.read(tmp_path / "saved")
        got += epochs_of(state, number)
        close(state)
        assert got == undisturbed, f"saved behind {first} and {second} more"


@pytest.mark.parametrize("case", CASES)
def test_passes_that_are_added_begin_where_the_last_one_ended(case: str, tmp_path: Path) -> None:
    seed(1)
    state = state_of(CASES[case]())
    undisturbed = list(epochs_of(state))
    close(state)
    seed(1)
    state = state_of(CASES[case]())
    got = list(epochs_of(state, EPOCHS - 1))
    with (tmp_path / "saved").open("wb") as stream:
        state.write(stream)
    close(state)
    seed(99)
    state = state_of(CASES[case]())
    state.read(tmp_path / "saved")
    got += epochs_of(state, 1)
    close(state)
    assert [taken[1:] for taken in got] == [taken[1:] for taken in undisturbed]


# --- what is refused ------------------------------------------------------------------------------------------------------


def saved(loader: Any, file: Path, batches: int = 2) -> Path:
    state = state_of(loader)
    run = iter(state.batches)
    for _ in range(batches):
        next(run)
    with file.open("wb") as stream:
        state.write(stream)
    close(state)
    return file


class Deaf(Own):
    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


class Circular(Own):
    """Behind its last batch it stands at the next pass."""

    def __len__(self) -> int:
        return 6

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._goes_on = self._at < self.size


class Late(Own):
    """Counts a batch when the next one is asked for."""

    @override
    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in super().__iter__():
            self._at -= 4
            yield batch
            self._at += 4


class LateWithLength(Late):
    def __len__(self) -> int:
        return 6


class Sized(Own):
    batch_size = 4


class OtherSized(Own):
    batch_size = 5


@pytest.mark.parametrize(
    ("before", "after", "batches", "reason"),
    [
        (Own, Deaf, 2, r"Deaf\.load_state_dict has not put back"),
        (Circular, Circular, 6, "has given more than its 6 batches"),
        (LateWithLength, LateWithLength, 6, "its state_dict counts a batch too late"),
        (Sized, OtherSized, 2, "batch_size was 4 and is 5, so batch 2 of epoch 1"),
        (torchs(Numbers), torchs(Numbers, drop_last=True), 2, "drop_last was False and is True"),
        (torchs(Numbers), Own, 2, "Own|batch_size"),
        (torchs(Numbers, num_workers=1), torchs(Numbers, num_workers=2), 2, "num_workers was 1 and is 2"),
    ],
)
def test_a_position_that_does_not_fit_is_refused(
    tmp_path: Path, before: Callable[[], Any], after: Callable[[], Any], batches: int, reason: str
) -> None:
    file = saved(before(), tmp_path / "saved", batches)

    def go_on() -> None:
        state = state_of(after())
        state.read(file)
        next(iter(state.batches), None)

    with pytest.raises(CheckpointStateError, match=rf"^CHECKPOINT_STATE: loader.*({reason})"):
        go_on()


def test_a_loader_that_gives_more_than_its_length_behind_a_restart_is_refused(tmp_path: Path) -> None:
    file = saved(LateWithLength(), tmp_path / "saved")
    state = state_of(LateWithLength())
    state.read(file)
    with pytest.raises(CheckpointStateError, match="has given more than its 6 batches"):
        list(state.batches)


@pytest.mark.parametrize("case", ["late", *CASES])
def test_a_loader_that_counts_a_batch_too_late_is_named_behind_a_restart(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = {**CASES, "late": Late}[case]
    file = saved(make(), tmp_path / "saved")
    state = state_of(make())
    state.read(file)
    with caplog.at_level("WARNING", "recovery.torch"):
        for _ in zip(range(3), state.batches, strict=False):
            pass
    close(state)
    said = [record.getMessage() for record in caplog.records if record.name == "recovery.torch"]
    assert [text.split()[0] for text in said] == ["event=batch_not_counted"] * (case == "late")


def test_what_a_loader_does_not_say_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = saved(Own(), tmp_path / "saved")
    with caplog.at_level("INFO", "recovery.torch"):
        state_of(Own()).read(file)
    assert "event=division_not_checked Own does not say its batch_size and rank" in caplog.text


class Private(Sampler[int]):
    def __init__(self) -> None:
        self._random = random.Random(5)

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._random.sample(range(SIZE), SIZE))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sampler": WeightedRandomSampler([1.0] * SIZE, SIZE)},
            "the WeightedRandomSampler of the StatefulDataLoader",
        ),
        ({"sampler": RandomSampler(Numbers(), generator=torch.Generator())}, "the RandomSampler"),
        ({"sampler": SubsetRandomSampler(range(SIZE))}, "the SubsetRandomSampler"),
        ({"sampler": Private()}, "the Private"),
        (
            {"batch_sampler": BatchSampler(RandomSampler(Numbers()), 4, False), "batch_size": 1},
            "the BatchSampler",
        ),
        ({"num_workers": 2, "in_order": False}, "in_order=False, so which batch is the next is a race"),
    ],
)
def test_an_order_that_torchdata_would_draw_anew_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^USAGE: loader: .*{said}"):
        state_of(torchs(Numbers, **options)())


@pytest.mark.parametrize("order", [list(range(SIZE))[::-1], Private()])
def test_what_is_drawn_to_look_at_an_order_changes_no_generator(order: Any) -> None:
    before = random.getstate(), torch.get_rng_state().tolist()
    with contextlib.suppress(UsageError):
        TrainState(model=nn.Identity(), loader=torchs(Numbers, sampler=order)())
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


def test_what_has_no_position_is_refused() -> None:
    with pytest.raises(UsageError, match="loader: list has no state_dict and no load_state_dict"):
        state_of([1, 2])
    with pytest.raises(UsageError, match="loader: SGD has no __iter__"):
        state_of(torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1))


def test_its_worker_processes_end_with_the_generation() -> None:
    before = psutil.Process().children(recursive=True)
    session: Any = FakeSession()
    current.enter(session)
    try:
        state = state_of(CASES["workers that stay"]())
    finally:
        current.enter(None)
    batches = iter(state.batches)
    next(batches)
    workers = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert len(workers) >= 2
    session.close()
    assert not psutil.wait_procs(workers, timeout=60)[1]


def test_live_rollback_does_not_give_one_ranks_position_to_another() -> None:
    assert state_of(Own()).why_not_live() == (
        "loader[0]: Own has a state_dict of its own, which only this rank knows.",
    )
