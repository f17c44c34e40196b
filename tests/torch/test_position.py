"""Bit for bit: whatever is saved in the middle goes on as if it had never been interrupted."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from typing_extensions import override

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch import ResumableLoader, TrainState
from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.warm_up import warm_up
from recovery.training.session import Session

# torch warns of its own internals.
pytestmark = pytest.mark.filterwarnings("ignore")


class Place:
    """What a loader needs of a session."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self.closers: list[Callable[[], None]] = []

    def on_generation_end(self, close: Callable[[], None]) -> None:
        self.closers.append(close)


def place(rank: int = 0, world_size: int = 1) -> Session:
    found: Any = Place(rank, world_size)
    return found  # type: ignore[no-any-return]  # a Session by shape


class Noisy(Dataset[torch.Tensor]):
    """Samples with noise from all three generators."""

    def __len__(self) -> int:
        return 21

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, float(torch.rand(())), random.random(), float(np.random.rand())])


class Stream(IterableDataset[torch.Tensor]):
    """A stream without length, in another order for every pass."""

    @override
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        order = torch.randperm(21).tolist()
        for index in order[info.id :: info.num_workers] if info else order:
            yield torch.tensor([index, float(torch.rand(())), random.random(), float(np.random.rand())])


class Counted(Stream):
    """A stream that can be put back without drawing."""

    def __init__(self) -> None:
        self.position = 0

    @override
    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < 21:
            self.position += 1
            yield torch.tensor([self.position])
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


CASES: dict[str, Callable[[], ResumableLoader]] = {
    "map": lambda: ResumableLoader(Noisy(), 4, session=place()),
    "map, two workers": lambda: ResumableLoader(Noisy(), 4, session=place(), num_workers=2),
    "map, dropping": lambda: ResumableLoader(Noisy(), 4, session=place(1, 2), drop_last=True, shuffle=False),
    "stream": lambda: ResumableLoader(Stream(), 4, session=place()),
    "stream, two workers": lambda: ResumableLoader(Stream(), 4, session=place(), num_workers=2),
    "stream with a state": lambda: ResumableLoader(Counted(), 4, session=place()),
}


def seed() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)


def forever(loader: ResumableLoader) -> Iterator[list[list[float]]]:
    while True:
        for batch in loader:
            yield batch.tolist()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("saved_after", [1, 3, 5, 6, 8])
def test_batches_go_on_exactly_where_they_were_saved(case: str, saved_after: int, tmp_path: Path) -> None:
    seed()
    loader = CASES[case]()
    state = TrainState(model=nn.Linear(1, 1), loader=loader)
    state.begin()
    batches = forever(loader)
    for _ in range(saved_after):
        next(batches)
    file = tmp_path / "saved"
    with file.open("wb") as stream:
        state.write(stream)
    expected = [next(batches) for _ in range(9)]
    loader.close()

    random.seed(99)
    torch.manual_seed(99)
    again = CASES[case]()
    TrainState(model=nn.Linear(1, 1), loader=again).read(file)

    found = forever(again)
    assert [next(found) for _ in range(9)] == expected
    again.close()


def test_ranks_share_the_data_and_pad_by_wrapping() -> None:
    loaders = [ResumableLoader(Noisy(), 4, session=place(rank, 4)) for rank in range(4)]
    assert {len(loader) for loader in loaders} == {2}
    used = [int(row[0]) for loader in loaders for batch in loader for row in batch]
    assert len(used) == 24
    assert set(used) == set(range(21))


def test_epochs_are_shuffled_differently_and_alike_in_every_process() -> None:
    def orders() -> list[list[float]]:
        loader = ResumableLoader(Noisy(), 21, session=place())
        return [
            next(iter(loader))[:, 0].tolist() if loader.state_dict()["received"] else _all(loader)
            for _ in range(2)
        ]

    first, second = orders()
    assert first != second
    assert orders() == [first, second]


def _all(loader: ResumableLoader) -> list[float]:
    return [row[0] for batch in loader for row in batch.tolist()]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 1))


def build() -> tuple[TrainState, Callable[[], float]]:
    model = net()
    optimizers = [
        torch.optim.SGD(model[0].parameters(), 0.1, momentum=0.9),
        torch.optim.Adam(model[3].parameters()),
    ]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers]
    state = TrainState(model=model, optimizer=optimizers, lr_scheduler=schedules)

    def step() -> float:
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return float(loss)

    return state, step


@pytest.mark.parametrize("snapshot", [False, True])
def test_losses_after_a_restore_are_the_same_bits(tmp_path: Path, snapshot: bool) -> None:
    state, step = build()
    for _ in range(5):
        step()
    file = tmp_path / "saved"
    kept = state.snapshot() if snapshot else None
    if kept is None:
        with file.open("wb") as stream:
            state.write(stream)
    expected = [step() for _ in range(10)]
    if kept is not None:
        with file.open("wb") as stream:
            kept.write(stream)

    torch.manual_seed(77)
    again, step_again = build()
    again.read(file)

    assert [step_again() for _ in range(10)] == expected
    assert "torch" in again.versions()


def test_all_generators_are_captured_and_warming_up_moves_none() -> None:
    seed()
    state = capture_random_state()
    drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
    restore_random_state(state)
    warm_up()
    assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == drawn


# --- what is refused ------------------------------------------------------------------------------------------------------


class Stubborn:
    def state_dict(self) -> dict[str, object]:
        return {"function": Stubborn}

    def load_state_dict(self, state: dict[str, object]) -> None:
        del state


def test_what_a_safe_load_refuses_is_named_at_the_first_save() -> None:
    with pytest.raises(CheckpointStateError, match=r"CHECKPOINT_STATE: metrics: .*weights_only"):
        TrainState(model=net(), metrics=Stubborn()).write(io.BytesIO())


def test_a_part_without_state_and_a_state_without_loader_are_refused() -> None:
    with pytest.raises(UsageError, match="ema: object has no state_dict"):
        TrainState(model=net(), ema=object())
    with pytest.raises(UsageError, match="has no loader"):
        _ = TrainState(model=net()).batches


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda: TrainState(model=net(), optimizer=torch.optim.SGD(net().parameters(), 0.1)), "lacks"),
        (lambda: TrainState(model=[net(), net()]), "holds 1 of them, here are 2"),
        (lambda: TrainState(model=nn.Linear(2, 2)), "Error\\(s\\) in loading"),
    ],
)
def test_a_checkpoint_of_another_program_is_refused_with_the_difference(
    tmp_path: Path, other: Callable[[], TrainState], reason: str
) -> None:
    file = tmp_path / "saved"
    with file.open("wb") as stream:
        TrainState(model=net()).write(stream)
    with pytest.raises(CheckpointStateError, match=reason):
        other().read(file)
    file.write_bytes(b"no file of torch")
    with pytest.raises(CheckpointStateError, match="cannot be loaded"):
        other().read(file)
