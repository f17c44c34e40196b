"""A position is one in a division of the data: the same number of batches of another size, seed or length is another place."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from recovery.checkpoint.position import Position
from recovery.errors import CheckpointStateError
from recovery.torch import ResumableLoader, TrainState
from tests.torch.test_position import Stream, place

GIVEN: dict[str, Any] = {"batch_size": 4, "seed": 1, "shuffle": True, "drop_last": False}


def loader(size: int = 48, ranks: tuple[int, int] = (0, 2), **changes: Any) -> ResumableLoader:
    return ResumableLoader(TensorDataset(torch.arange(size)), session=place(*ranks), **{**GIVEN, **changes})


def taken(from_: ResumableLoader, batches: int = 100) -> list[int]:
    """The samples of the next batches, at most to the end of the pass."""
    found = iter(from_)
    return [int(row) for batch in itertools.islice(found, batches) for row in batch[0]]


def saved(path: Path, *, after: int, **changes: Any) -> tuple[Path, list[int]]:
    """A checkpoint in a pass, and the samples that were used."""
    used = loader(**changes)
    state = TrainState(model=nn.Linear(1, 1), loader=used)
    rows = taken(used, after)
    with (path / "saved").open("wb") as stream:
        state.write(stream)
    return path / "saved", rows


def resume(file: Path, into: ResumableLoader) -> ResumableLoader:
    TrainState(model=nn.Linear(1, 1), loader=into).read(file)
    return into


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 8}, "batch_size was 4 and is 8"),
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"shuffle": False}, "shuffle was True and is False"),
        ({"drop_last": True}, "drop_last was False and is True"),
        ({"size": 40}, r"len\(dataset\) was 48 and is 40"),
        ({"ranks": (0, 3)}, "world_size was 2 and is 3"),
        ({"batch_size": 8, "seed": 2, "redivide": True}, "batch_size was 4 and is 8, seed was 1 and is 2"),
    ],
)
def test_in_a_pass_another_division_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    file, _ = saved(tmp_path, after=2)
    with pytest.raises(CheckpointStateError, match=rf"^CHECKPOINT_STATE: ResumableLoader: .*{said}"):
        resume(file, loader(**change))


def test_a_stream_counts_its_worker_processes_too(tmp_path: Path) -> None:
    first: IterableDataset[Any] = Stream()
    with (tmp_path / "saved").open("wb") as stream:
        used = ResumableLoader(first, 4, session=place())
        next(iter(used))
        TrainState(model=nn.Linear(1, 1), loader=used).write(stream)
    with pytest.raises(CheckpointStateError, match="num_workers was 0 and is 2"):
        resume(tmp_path / "saved", ResumableLoader(Stream(), 4, session=place(), num_workers=2))


@pytest.mark.parametrize(("before", "behind"), [(4, 8), (8, 4), (4, 5), (5, 3)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_that_may_be_divided_again_uses_every_sample_once(
    tmp_path: Path, before: int, behind: int, drop_last: bool
) -> None:
    file, rows = saved(tmp_path, after=2, batch_size=before, drop_last=drop_last)
    again = resume(file, loader(batch_size=behind, drop_last=drop_last, redivide=True))
    rest = taken(again, 1)
    with file.open("wb") as stream:
        TrainState(model=nn.Linear(1, 1), loader=again).write(stream)
    third = resume(file, loader(batch_size=behind, drop_last=drop_last, redivide=True))
    rest += taken(third)

    whole = taken(loader(batch_size=24))
    left_out = (len(whole) - len(rows)) % behind if drop_last else 0
    assert rows + rest == whole[: len(whole) - left_out]
    assert (third.epoch, third.batch, third.samples) == (1, 0, 0)


def test_between_two_passes_the_next_one_may_be_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, rows = saved(tmp_path, after=100)
    assert len(rows) == 24
    assert len(taken(resume(file, loader(batch_size=8)))) == 24
    assert "event=division_changed epoch=2 batch_size was 4 and is 8: from this pass on" in caplog.text


def test_what_an_earlier_release_saved_is_taken_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="recovery.torch")
    first = loader()
    rows = taken(first, 2)
    state = first.state_dict()
    again = loader()
    again.load_state_dict({name: state[name] for name in ("epoch", "received")})
    assert rows + taken(again) == taken(loader())
    assert "event=division_not_checked" in caplog.text


class Empty(Dataset[Any]):
    """No sample at all."""

    def __len__(self) -> int:
        return 0


def test_a_state_believes_the_session_and_an_older_file_its_loader() -> None:
    used = loader()
    state = TrainState(model=nn.Linear(1, 1), loader=used)
    taken(used)
    at = Position(step=6, epoch=0, batch=6)
    assert state.take_position(at, exact=True) == at
    assert state.take_position(at, exact=False) == Position(step=6, epoch=1, batch=0)
    assert TrainState(model=nn.Linear(1, 1)).take_position(at, exact=False) == at
    assert taken(ResumableLoader(Empty(), session=place())) == []
