"""What people are told of a training: nothing is read from a device for it, and nothing that a user hands over costs a heartbeat."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from recovery.checkpoint.position import Position
from recovery.errors import UsageError
from recovery.training.outlook import End, LossTold, check_end, steps_of_epoch


class OnDevice:
    """A loss whose value is waited for."""

    device = "cuda:0"
    asked = 0

    def __float__(self) -> float:
        self.asked += 1
        return 0.5


class Broken:
    """Lies in the host's memory, and has no value."""

    device = "cpu"

    def __float__(self) -> float:
        raise RuntimeError("a tensor with 2 elements")


class Spread(OnDevice):
    """A part of it lies on each rank, so that its value is asked of all of them."""

    device = "cpu"

    def full_tensor(self) -> float:
        raise NotImplementedError


@pytest.mark.parametrize("kind", [OnDevice, Spread])
def test_a_loss_that_is_waited_for_is_told_when_somebody_has_read_it_anyway(kind: type[OnDevice]) -> None:
    told, loss = LossTold(), kind()
    assert told.note(loss) is loss
    assert [told.value] == [None]
    assert loss.asked == 0
    assert told.read(loss) == 0.5
    told.note(kind())
    assert told.value == 0.5
    assert loss.asked == 1


@pytest.mark.parametrize(("loss", "value"), [(2, 2.0), (math.inf, math.inf), (0.25, 0.25)])
def test_a_number_is_told_as_it_is(loss: float, value: float) -> None:
    told = LossTold()
    assert told.value is None
    told.note(loss)
    assert told.value == value


def test_a_tensor_of_the_host_is_told_whatever_it_is() -> None:
    torch: Any = pytest.importorskip("torch")
    told = LossTold()
    for loss in (torch.tensor(0.25), torch.zeros(2), Broken()):
        told.note(loss)
        assert told.value == 0.25, "the newest that is a number"


def test_a_loader_without_a_length_has_no_end() -> None:
    def batches() -> Iterator[int]:
        yield 1

    class Odd:
        def __len__(self) -> int:
            raise RuntimeError("not yet")

    assert [steps_of_epoch(each) for each in ([1, 2], batches(), Odd())] == [2, 0, 0]


@pytest.mark.parametrize(
    ("at", "epochs", "says"),
    [
        (
            Position(step=30, epoch=3, batch=0),
            2,
            "2 is less than what this job has done: it stands at step 30, behind 3 epochs",
        ),
        (Position(step=30, epoch=2, batch=10), 2, "it stands at step 30, behind 2 epochs and 10 batches"),
        (Position(step=30, epoch=3, batch=0), 3, ""),
        (Position(step=30, epoch=2, batch=10), 3, ""),
        (Position(step=30, epoch=3, batch=0), 4, ""),
        (Position(step=0, epoch=0, batch=0), 1, ""),
    ],
)
def test_an_end_that_lies_behind_what_is_done_is_refused(at: Position, epochs: int, says: str) -> None:
    if says:
        with pytest.raises(UsageError, match=says):
            check_end(at, epochs, field="epochs")
    else:
        check_end(at, epochs, field="epochs")


def test_steps_that_are_fewer_than_are_done_are_refused() -> None:
    End(None, 30).check(Position(step=30, epoch=3, batch=0))
    with pytest.raises(
        UsageError, match="max_steps: 29 is less than what this job has done: it stands at step 30"
    ):
        End(4, 29).check(Position(step=30, epoch=3, batch=0))


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps", "over", "goes_on"),
    [
        (3, None, 12, (12, 3, 0), (12, 2, 4)),
        (None, 10, 10, (10, 2, 2), (9, 2, 1)),
        (3, 10, 10, (10, 2, 2), (9, 2, 1)),
        (3, 20, 12, (12, 3, 0), (12, 2, 4)),
        (0, None, 0, (0, 0, 0), None),
    ],
)
def test_training_is_over_with_its_passes_or_its_steps(
    epochs: int | None, max_steps: int | None, steps: int, over: Any, goes_on: Any
) -> None:
    end = End(epochs, max_steps)
    assert end.steps(4) == steps
    for place, expected in ((over, True), (goes_on, False)):
        if place is not None:
            step, epoch, batch = place
            assert end.is_reached(Position(step=step, epoch=epoch, batch=batch)) is expected


def test_of_passes_without_a_length_the_steps_alone_are_known() -> None:
    assert (End(3, None).steps(0), End(None, 10).steps(0), End(3, 10).steps(0)) == (0, 10, 10)


def test_training_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="neither epochs nor max_steps"):
        End(None, None)
