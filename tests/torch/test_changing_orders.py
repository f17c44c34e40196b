"""A sampler, or a data set, that training changes in the middle of a pass: the pass keeps the order that it has begun in, or the change is an error."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, Sampler, WeightedRandomSampler
from typing_extensions import override

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import ResumableLoader, TrainState
from tests.torch.fake_session import FakeSession
from tests.torch.test_sampled_order import SIZE, Noisy, resumed, saved
from tests.torch.test_stateful_loader import Numbers, state_of, torchs

# torchdata 0.11 calls torch.set_vital, which torch 2.13 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")


class Changing(WeightedRandomSampler):
    """Whose weights training changes."""

    def __init__(self) -> None:
        super().__init__([1.0] * SIZE, SIZE)


class Curriculum(Sampler[Any]):
    """Gives what it has now: indices, lists of them, or other keys."""

    def __init__(self, given: list[Any]) -> None:
        self.given = given

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


class Keyed(Noisy):
    @override
    def __getitem__(self, key: Any) -> Any:
        return key if isinstance(key, int) else int(key[0])


def _change(sampler: Any) -> None:
    if isinstance(sampler, Changing):
        sampler.weights[3] = 100.0
    else:
        sampler.given = sampler.given[::-1]


CHANGING: dict[str, Callable[[], dict[str, Any]]] = {
    "weights": lambda: {"sampler": Changing()},
    "indices": lambda: {"sampler": Curriculum(list(range(SIZE)))},
    "keys": lambda: {"sampler": Curriculum([(str(number), "large") for number in range(SIZE)])},
    "batches": lambda: {
        "batch_sampler": Curriculum([list(range(at, at + 2 + at % 3)) for at in range(0, 40, 2)])
    },
    "batches of weights": lambda: {"batch_sampler": BatchSampler(Changing(), 5, False)},
}


@pytest.mark.parametrize("brought_back", [False, True])
@pytest.mark.parametrize("case", CHANGING)
def test_pass_goes_on_in_its_order_where_the_sampler_gives_another_one(
    case: str, brought_back: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def made() -> tuple[Any, ResumableLoader]:
        options = CHANGING[case]()
        [sampler] = options.values()
        if "batch_sampler" not in options:
            options["batch_size"] = 5
        of = ResumableLoader(Keyed(), session=FakeSession(0, 2), **options)
        return getattr(sampler, "sampler", sampler), of

    sampler, first = made()
    batches = iter(first)
    next(batches), next(batches)
    _change(sampler)
    with (tmp_path / "saved").open("wb") as stream:
        TrainState(model=nn.Identity(), loader=first).write(stream)
    expected = [batch.tolist() for batch in batches]
    following = [batch.tolist() for batch in first]
    sampler, again = made()
    if brought_back:
        _change(sampler)
    resumed(tmp_path / "saved", again)
    # Also saved again, and left.
    resumed(saved(again, tmp_path / "saved"), again)
    if not brought_back:
        _change(sampler)
    assert [batch.tolist() for batch in again] == expected
    assert [batch.tolist() for batch in again] == following
    kind = "BatchSampler" if case == "batches of weights" else type(sampler).__name__
    assert (f"event=order_kept epoch=1 batch=2 {kind}" in caplog.text) == brought_back


def test_an_order_that_no_checkpoint_can_have_is_compared(tmp_path: Path) -> None:
    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        @override
        def __repr__(self) -> str:
            return str(self.number)

        @override
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Key) and other.number == self.number

        __hash__ = None  # type: ignore[assignment]  # of no use here

    class Of(Noisy):
        @override
        def __getitem__(self, key: Any) -> Any:
            return key.number

    def made(keys: list[int]) -> ResumableLoader:
        return ResumableLoader(Of(), session=FakeSession(), batch_size=5, sampler=list(map(Key, keys)))

    first = made([*range(SIZE)])
    next(iter(first))
    file = saved(first, tmp_path / "saved")
    assert len(list(resumed(file, made([*range(SIZE)])))) == 9
    with pytest.raises(CheckpointStateError, match="its list gives another order, so batch 1 of epoch 1"):
        resumed(file, made([*range(SIZE)][::-1]))


def test_pass_of_a_data_set_that_grows_keeps_its_order(tmp_path: Path) -> None:
    class Growing(Keyed):
        size = SIZE

        @override
        def __len__(self) -> int:
            return self.size

    def made() -> tuple[Growing, ResumableLoader]:
        data = Growing()
        return data, ResumableLoader(data, 5, session=FakeSession())

    data, first = made()
    batches = iter(first)
    next(batches)
    data.size += 10
    file = saved(first, tmp_path / "saved")
    expected = [batch.tolist() for batch in batches]
    assert max(Counter(row for batch in expected for row in batch).values()) == 1
    assert len(first) == 12, "the next pass has the new ones"
    data, again = made()
    again.load_state_dict(torch.load(file)["parts"]["loader"][0])
    data.size += 10
    again.prime()
    assert [batch.tolist() for batch in again] == expected


class Reversed(Sampler[int]):
    """Gives the same order each time, until training changes it."""

    def __init__(self) -> None:
        self.order = list(range(SIZE))

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def test_sampler_that_changes_in_a_pass_is_refused_at_the_save_and_at_the_restore(tmp_path: Path) -> None:
    sampler = Reversed()
    first = state_of(torchs(Numbers, batch_size=4, sampler=sampler)())
    batches = iter(first.batches)
    next(batches)
    with (tmp_path / "saved").open("wb") as stream:
        first.write(stream)
    sampler.order.reverse()
    with pytest.raises(
        UsageError,
        match=r"the Reversed of the StatefulDataLoader gives another order now than when this pass began",
    ):
        first.write(io.BytesIO())
    for _ in batches:
        pass
    first.write(io.BytesIO())
    again = state_of(torchs(Numbers, batch_size=4, sampler=sampler)())
    with pytest.raises(CheckpointStateError, match="gives another order than in the checkpoint's pass"):
        again.read(tmp_path / "saved")
