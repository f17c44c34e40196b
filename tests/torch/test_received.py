"""A stream is drawn again up to where a checkpoint stands: what it gives then is what it gave, or the difference is an error."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import IterableDataset
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import ResumableLoader
from recovery.torch.received import Received
from recovery.torch.stateful_loader import StatefulLoader
from tests.torch.fake_session import FakeSession
from tests.torch.test_own_generators import torchdatas_loaders

SIZE = 16


class Stream(IterableDataset[Any]):
    """In an order of its own, which another process would not draw again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @override
    def __iter__(self) -> Iterator[Any]:
        order = list(range(SIZE))
        random.Random(self._seed).shuffle(order)
        return iter([{"row": torch.tensor(row), "name": str(row)} for row in order])


class Buffered(Stream):
    """As Hugging Face's `.shuffle()` on a stream: its state says what was read, and not what waits in the buffer."""

    def __init__(self) -> None:
        super().__init__(1)
        self._ex_iterable = BufferShuffledExamplesIterable(1)
        self._read = 0

    @override
    def __iter__(self) -> Iterator[Any]:
        waiting, draw = list[int](), random.Random(self._seed)
        for self._read in range(self._read, SIZE):  # noqa: B020 - goes on where it was put
            waiting.append(self._read)
            if len(waiting) > 4:
                yield waiting.pop(draw.randrange(len(waiting)))
        self._read = 0
        yield from waiting

    def state_dict(self) -> dict[str, Any]:
        return {"read": self._read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._read = state["read"]


class BufferShuffledExamplesIterable:
    """Of the name of Hugging Face's."""

    def __init__(self, seed: int | None) -> None:
        self.generator = numpy.random.default_rng(seed)


def loader(dataset: IterableDataset[Any], **options: Any) -> ResumableLoader:
    return ResumableLoader(dataset, 4, session=FakeSession(), **options)


def left(of: ResumableLoader, batches: int) -> dict[str, Any]:
    given = iter(of)
    for _ in range(batches):
        next(given)
    of.close()
    return of.state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_stream_that_does_not_repeat_itself_is_an_error_where_it_is_drawn_again(workers: int) -> None:
    state = left(loader(Stream(1), num_workers=workers), 2)
    again = loader(Stream(2), num_workers=workers)
    again.load_state_dict(state)
    with pytest.raises(
        CheckpointStateError,
        match=r"epoch 1 of the data set Stream does not repeat itself: drawn again, its first 2 batches",
    ):
        again.prime()
    again.close()


def test_stream_that_differs_in_its_last_batch_is_found_wherever_it_was_left() -> None:
    class Cut(Stream):
        @override
        def __iter__(self) -> Iterator[Any]:
            for number, row in enumerate(super().__iter__()):
                yield {"row": torch.tensor(99), "name": "99"} if number == 11 else row

    for batches in (1, 2):
        again = loader(Cut(1))
        again.load_state_dict(left(loader(Stream(1)), batches))
        again.prime()
    again = loader(Cut(1))
    again.load_state_dict(left(loader(Stream(1)), 3))
    with pytest.raises(CheckpointStateError, match="does not repeat itself"):
        next(iter(again))


def test_iteration_that_was_left_and_is_begun_again_is_compared_too() -> None:
    class Anew(Stream):
        @override
        def __iter__(self) -> Iterator[Any]:
            self._seed += 1
            return super().__iter__()

    of = loader(Anew(1))
    next(iter(of))
    with pytest.raises(CheckpointStateError, match="does not repeat itself"):
        next(iter(of))


def test_a_batch_that_training_changes_is_the_one_that_was_received() -> None:
    of = loader(Stream(1))
    batches = iter(of)
    next(batches)["row"].zero_()
    again = loader(Stream(1))
    again.load_state_dict(of.state_dict())
    again.prime()
    assert next(iter(again))["name"] == next(batches)["name"]


def test_between_two_passes_there_is_nothing_to_compare() -> None:
    of = loader(Stream(1))
    for _ in of:
        pass
    again = loader(Stream(2))
    again.load_state_dict(of.state_dict())
    again.prime()
    assert sum(1 for _ in again) == 4


def test_a_file_of_an_earlier_release_is_not_compared_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "recovery.torch")
    state = left(loader(Stream(1)), 2)
    del state["drawn"]
    again = loader(Stream(2))
    again.load_state_dict(state)
    again.prime()
    assert "event=stream_not_compared batches=2 of epoch 1 of the data set Stream" in caplog.text


@pytest.mark.parametrize("known", [False, True])
def test_live_rollback_compares_what_a_survivor_has_received(known: bool) -> None:
    of = loader(Stream(1))
    next(iter(of))
    again = loader(Stream(2))
    again.follow_keys(1, 0)
    again.load_position({**of.position, "of": of.division(), "drawn": of.drawn if known else ""})
    if not known:
        again.prime()
        return
    with pytest.raises(CheckpointStateError, match="does not repeat itself"):
        again.prime()


# --- what tells two batches apart -------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Rows:
    of: Any
    more: Any = None


Named = collections.namedtuple("Named", ["of"])
LARGE = torch.arange(1_000_000)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1, 2]), torch.tensor([2, 1])),
        (torch.tensor([1, 4]), torch.tensor([2, 3])),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.tensor(1.0), torch.tensor(-1.0)),
        (LARGE, LARGE.roll(1)),
        (LARGE.view(1000, 1000), LARGE.view(1000, 1000).t()),
        (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)),
        (torch.ones(3).to_sparse(), torch.ones(3)),
        (numpy.arange(3), numpy.arange(3)[::-1]),
        (numpy.arange(3), numpy.arange(3.0)),
        (numpy.array(["a", None], dtype=object), numpy.array([None, "a"], dtype=object)),
        (numpy.float32(1), numpy.float64(1)),
        ("a", b"a"),
        (1, True),
        (None, 0),
        ([1, 2], (1, 2)),
        ([[1], 2], [1, [2]]),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (collections.UserDict(a=1), collections.UserDict(a=2)),
        (Rows([1]), Rows([2])),
        (Rows(1), Rows(None, 1)),
        (Named(1), Named(2)),
    ],
)
def test_batches_that_differ_have_other_digests_and_the_same_have_the_same(one: Any, other: Any) -> None:
    def digest(*batches: Any) -> str:
        received = Received()
        list(received.draw_again(iter(batches), 0, of=""))
        return received.digest

    assert digest(one) == digest(one) != digest(other)
    assert digest(one, other) != digest(other, one)


def test_of_what_nobody_can_look_into_the_class_counts() -> None:
    received, inner = Received(), [object()]
    inner.append(inner)
    rows = [
        inner,
        Rows(object()),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        {object(): 1},
    ]
    assert len(list(received.draw_again(iter(rows), 0, of=""))) == 4
    again = Received()
    rows = [[object(), inner], Rows(object()), rows[2], {object(): 1}]
    list(again.draw_again(iter(rows), 0, of=""))
    assert again.digest == received.digest


# --- streams that shuffle through a buffer ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_stream_whose_state_forgets_its_buffer_is_drawn_again(workers: int) -> None:
    def made() -> ResumableLoader:
        return loader(Buffered(), num_workers=workers)

    whole = [batch.tolist() for batch in made()]
    assert not made().why_not_derivable
    for batches in (1, 2, 3):
        again = made()
        again.load_state_dict(left(made(), batches))
        assert [batch.tolist() for batch in again] == whole[batches:]


def test_hugging_faces_shuffled_stream_is_drawn_again() -> None:
    datasets = pytest.importorskip("datasets")

    def made() -> ResumableLoader:
        examples = datasets.iterable_dataset.ExamplesIterable(
            lambda: ((row, {"x": row}) for row in range(64)), {}
        )
        return loader(datasets.IterableDataset(examples).shuffle(seed=1, buffer_size=16))

    whole = [batch["x"].tolist() for batch in made()]
    again = made()
    again.load_state_dict(left(made(), 5))
    assert [batch["x"].tolist() for batch in again] == whole[5:]


def test_shuffle_without_a_seed_is_said_before_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    stream = Buffered()
    loader(stream)
    assert "shuffle_without_seed" not in caplog.text
    stream._ex_iterable = BufferShuffledExamplesIterable(None)
    loader(stream)
    assert "event=shuffle_without_seed the Buffered" in caplog.text


def test_torchdatas_loader_over_one_is_said_to_lose_samples(caplog: pytest.LogCaptureFixture) -> None:
    with torchdatas_loaders() as kind:
        StatefulLoader(kind(Stream(1)))
        assert "shuffle_buffer" not in caplog.text
        StatefulLoader(kind(Buffered()))
    assert "event=shuffle_buffer_not_kept the state of the Buffered" in caplog.text
