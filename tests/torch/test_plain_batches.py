"""Batches that come from no loader, and plain values: a loop that counts steps goes on with the very next batch, and with its own numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import ResumableLoader, TrainState
from recovery.torch.plain_batches import PlainValues
from recovery.torch.script import passes_of
from tests.torch.fake_session import FakeSession


def drawn() -> Iterator[torch.Tensor]:
    """A generator as a script has it: draws from the program's generators, and never ends."""
    while True:
        yield torch.cat([torch.rand(2), torch.tensor([random.random()])])


class Anew:
    """An iterable that begins again in each pass."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.islice(drawn(), 4)


class Stream(IterableDataset[Any]):
    @override
    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(drawn(), 4)


class WithState:
    """One that says where it is, and has an order of its own."""

    at, goes_on = 0, False

    def __iter__(self) -> Iterator[int]:
        self.at, self.goes_on = self.at if self.goes_on else 0, False
        while self.at < 4:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.goes_on = state["at"], True


class StreamWithState(WithState, IterableDataset[Any]):
    """The same as torch's."""


CASES: dict[str, Callable[[], Any]] = {
    "a function": lambda: lambda step: torch.cat([torch.rand(2), torch.tensor([step])]),
    "a generator": drawn,
    "an iterator of C": lambda: map(torch.tensor, itertools.count()),
    "an iterable": Anew,
    "a list": lambda: [torch.arange(3), torch.arange(3, 5)],
    "a stream": Stream,
    "a stream with a state": StreamWithState,
    "a loader without batches of its own": lambda: DataLoader(Stream(), batch_size=None),
    "the same with a process": lambda: DataLoader(Stream(), batch_size=None, num_workers=1),
    "an iterable with a state": WithState,
}


def state_of(batches: Any, extra: dict[str, Any] | None = None) -> TrainState:
    further: dict[str, Any] = {} if extra is None else {"extra": PlainValues(extra)}
    return TrainState(model=nn.Identity(), loader=passes_of(batches, FakeSession()), **further)


def steps(state: TrainState) -> Iterator[Any]:
    """A training whose steps draw."""
    while True:
        for batch in state.batches:
            torch.rand(1)
            random.random()
            yield batch.tolist() if isinstance(batch, torch.Tensor) else batch


def saved(state: TrainState, file: Path) -> Path:
    with file.open("wb") as stream:
        state.write(stream)
    return file


# torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_loop_goes_on_with_the_very_next_batch(case: str, tmp_path: Path) -> None:
    def begun() -> TrainState:
        torch.manual_seed(3)
        random.seed(3)
        return state_of(CASES[case]())

    undisturbed = list(itertools.islice(steps(begun()), 11))
    for first, second in ((1, 2), (3, 4), (4, 3)):
        state, got = begun(), list[Any]()
        for count in (first, second):
            batches = steps(state)
            got += itertools.islice(batches, count)
            # As a session saves: when the loop has asked for the next step, and before that is drawn.
            file = saved(state, tmp_path / "saved")
            torch.manual_seed(99)
            random.seed(99)
            state = state_of(CASES[case]())
            state.read(file)
        got += itertools.islice(steps(state), 11 - len(got))
        assert got == undisturbed, f"saved behind {first} and {second} more"


def test_function_is_given_the_step_that_its_batch_is_for(tmp_path: Path) -> None:
    asked: list[int] = []
    state = state_of(asked.append)
    list(itertools.islice(state.batches, 3))
    again = state_of(asked.append)
    again.read(saved(state, tmp_path / "saved"))
    list(itertools.islice(again.batches, 2))
    assert asked == [1, 2, 3, 4, 5]


def test_place_of_a_loader_is_none_of_a_function_and_the_other_way_round(tmp_path: Path) -> None:
    of: dict[str, Any] = {"function": lambda step: step, "list": [1, 2, 3]}
    for one, other in (("function", "list"), ("list", "function")):
        state = state_of(of[one])
        next(iter(state.batches))
        file = saved(state, tmp_path / "saved")
        with pytest.raises(CheckpointStateError, match="another place"):
            state_of(of[other]).read(file)


def test_iterator_gives_one_pass_and_an_iterable_without_batches_is_refused() -> None:
    batches = steps(state_of(iter([1, 2])))
    assert [next(batches), next(batches)] == [1, 2]
    with pytest.raises(UsageError, match="is an iterator, which gives one pass"):
        next(batches)
    with pytest.raises(UsageError, match="batches: the list gives no batch"):
        next(steps(state_of([])))


def test_iterator_that_an_earlier_entry_has_drawn_from_is_refused() -> None:
    batches = drawn()
    next(steps(state_of(batches)))
    with pytest.raises(UsageError, match="the generator was drawn from in an earlier entry of the training"):
        state_of(batches)


def test_generator_that_gives_others_behind_a_restart_is_an_error(tmp_path: Path) -> None:
    state = state_of(iter(range(10)))
    next(steps(state))
    with pytest.raises(CheckpointStateError, match="the data set range_iterator does not repeat itself"):
        state_of(iter(range(5, 10))).read(saved(state, tmp_path / "saved"))


def test_what_gives_no_batches_is_refused() -> None:
    with pytest.raises(UsageError, match="was given int, which gives no batches"):
        passes_of(3, FakeSession())
    with pytest.raises(UsageError, match="batch_size=None"):
        ResumableLoader(torch.utils.data.TensorDataset(torch.arange(3)), None, session=FakeSession())


def test_batches_with_a_length_have_one() -> None:
    class Counted(Stream):
        def __len__(self) -> int:
            return 4

    assert passes_of(Counted(), FakeSession()).length == 4
    unknown: Iterable[Any] = [[1], lambda step: step]
    assert [passes_of(one, FakeSession()).length for one in unknown] == [None, None]


def test_a_loader_that_knows_its_place_stays_as_it_is() -> None:
    loader = ResumableLoader(Stream(), 4, session=FakeSession())
    assert passes_of(loader, FakeSession()) is loader


def test_plain_values_are_what_they_were_in_the_dictionary_of_the_loop(tmp_path: Path) -> None:
    extra: dict[str, Any] = {"best": 0.5, "seen": [1, 2], "mean": torch.ones(2), "name": "a"}
    state = state_of([1], extra)
    file = saved(state, tmp_path / "saved")
    before = {**extra, "seen": [1, 2]}
    extra["seen"].append(3)
    again = {"best": 9.0, "more": 1}
    state_of([1], again).read(file)
    assert {**again, "mean": None} == {**before, "mean": None}
    assert torch.equal(again["mean"], before["mean"])  # type: ignore[arg-type]  # it is put there
    # What the loop calls by a name of its own is the same object behind a restart.
    mean, seen, inner = torch.zeros(2), [0], {"decay": 0.9, "shadow": torch.zeros(3)}
    here = {"best": 0.0, "seen": seen, "mean": mean, "name": "", "inner": inner}
    extra["inner"] = {"decay": 0.99, "shadow": torch.ones(1)}
    state_of([1], here).read(saved(state, tmp_path / "later"))
    assert (seen, mean.tolist(), inner["decay"]) == ([1, 2, 3], [1, 1], 0.99)
    assert inner["shadow"].tolist() == [1], "of another shape"  # type: ignore[attr-defined]
    assert here["seen"] is seen
    assert here["mean"] is mean
    assert here["inner"] is inner
    extra["best"] = object()
    with pytest.raises(CheckpointStateError, match="extra: "):
        saved(state, tmp_path / "saved")
