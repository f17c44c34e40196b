"""What a map-style data set knows in a loader's worker processes: which pass it is, in which session, and that it is the user's own object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch import ResumableLoader, TrainState
from recovery.torch.stateful_loader import StatefulLoader
from recovery.training import current
from tests.torch.fake_session import FakeSession
from tests.torch.test_own_generators import torchdatas_loaders

SIZE, EPOCHS = 8, 3

WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 1},
    {"num_workers": 1, "persistent_workers": True},
    {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
]


class Told(Dataset[Any]):
    """In each pass as it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.epoch])

    def __len__(self) -> int:
        return SIZE


class Following(Told):
    """In each pass as the session says."""

    def __init__(self, session: Any) -> None:
        self.session = session

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.session.epoch])


class Entry(FakeSession):
    """With passes, which are those of its state's loader."""

    epoch = 1
    state: TrainState | None = None


@pytest.fixture
def entry() -> Iterator[Any]:
    session: Any = Entry()
    current.enter(session)
    yield session
    current.enter(None)
    session.close()


def passes(of: ResumableLoader, session: Any = None) -> Iterator[list[Any]]:
    while of.epoch < EPOCHS:
        if session is not None:
            session.epoch = of.epoch + 1
        for batch in of:
            yield batch.tolist()


def resumed(of: ResumableLoader, into: ResumableLoader) -> ResumableLoader:
    into.load_state_dict(of.state_dict())
    of.close()
    into.prime()
    return into


@pytest.mark.parametrize("workers", [*WORKERS[:3], pytest.param(WORKERS[3], marks=pytest.mark.slow)])
def test_data_set_is_told_each_pass_wherever_the_job_goes_on(workers: dict[str, Any], entry: Any) -> None:
    def made() -> ResumableLoader:
        return ResumableLoader(Told(), 4, session=entry, **workers)

    undisturbed = list(passes(made()))
    assert [batch[0][1] for batch in undisturbed] == [0, 0, 1, 1, 2, 2]
    first = made()
    batches = passes(first)
    got = [next(batches) for _ in range(3)]
    assert got + list(passes(resumed(first, made()))) == undisturbed


@pytest.mark.parametrize("workers", WORKERS[:3])
def test_session_in_a_worker_process_that_stays_is_in_the_pass_that_it_is_asked_for(
    workers: dict[str, Any], entry: Any
) -> None:
    def made() -> ResumableLoader:
        of = ResumableLoader(Following(entry), 4, session=entry, **workers)
        entry.state = TrainState(model=nn.Identity(), loader=of)
        return of

    undisturbed = list(passes(made(), entry))
    assert [batch[0][1] for batch in undisturbed] == [1, 1, 2, 2, 3, 3]
    first = made()
    batches = passes(first, entry)
    got = [next(batches) for _ in range(3)]
    assert got + list(passes(resumed(first, made()), entry)) == undisturbed


def test_passes_of_a_further_loader_are_not_those_of_the_session(entry: Any) -> None:
    entry.state = TrainState(model=nn.Identity(), loader=ResumableLoader(Told(), 4, session=entry))
    entry.epoch = 7
    further = ResumableLoader(Following(entry), 4, session=entry, **WORKERS[2])
    assert {batch[0][1] for batch in passes(further)} == {7}


class Shared(Dataset[Any]):
    """A worker process has what its worker_init_fn left."""

    rows: Any = range(SIZE)

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return torch.tensor(self.rows[index])

    def __len__(self) -> int:
        return SIZE


def share(worker: int) -> None:
    """As torch's documentation has it."""
    info = get_worker_info()
    assert info is not None
    of: Any = info.dataset
    of.rows = [100 * (worker + 1) + row for row in of.rows]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_init_fn_finds_the_users_data_set(context: str) -> None:
    session = FakeSession()
    of = ResumableLoader(
        Shared(),
        4,
        session=session,
        shuffle=False,
        num_workers=2,
        worker_init_fn=share,
        multiprocessing_context=context,
    )
    assert [batch.tolist() for batch in of] == [[100, 101, 102, 103], [204, 205, 206, 207]]
    session.close()


def test_torchdatas_worker_processes_that_stay_hear_of_no_later_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "recovery.torch")
    with torchdatas_loaders() as kind:
        StatefulLoader(kind(Shared(), num_workers=1))
        assert "session_not_followed" not in caplog.text
        StatefulLoader(kind(Shared(), num_workers=1, persistent_workers=True))
        assert "event=session_not_followed" in caplog.text
        with pytest.raises(UsageError, match=r"has persistent_workers=True, .* set_epoch of the Told"):
            StatefulLoader(kind(Told(), num_workers=1, persistent_workers=True))
