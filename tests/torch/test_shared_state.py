"""A state that the ranks write together comes back with the same bits, or is refused; every tensor is written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from recovery.errors import CheckpointManifestError, CheckpointStateError, UsageError
from recovery.torch.shared_state import SharedPieces
from recovery.torch.state import TrainState


class Training:
    """A rank of a replicated training: its batch statistics and its `own` part are its own."""

    def __init__(self, rank: int, per_rank: Sequence[str] = ("own",)) -> None:
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Linear(64, 64))
        # Tied weights.
        self.net[3].weight = self.net[2].weight
        self.own = nn.Linear(4, 4)
        nn.init.constant_(self.own.weight, rank)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state = TrainState(
            model=self.net,
            optimizer=self.optimizer,
            lr_scheduler=self.schedule,
            own=self.own,
            per_rank=per_rank,
        )
        self.net.eval()(torch.ones(2, 64)).square().mean().backward()
        self.step()
        self.net.train()(torch.randn(4, 64) + rank)

    def step(self) -> None:
        self.optimizer.step()
        self.schedule.step()

    def bits(self) -> str:
        optimizer = self.optimizer.state_dict()
        tensors = [*self.net.state_dict().values(), *self.own.state_dict().values(), torch.get_rng_state()]
        tensors += [value for one in optimizer["state"].values() for value in one.values()]
        content = [tensor.numpy().tobytes() for tensor in tensors]
        return repr((content, optimizer["param_groups"], self.schedule.state_dict()))


def save(directory: Path, trainings: Sequence[Training]) -> list[SharedPieces]:
    """Every rank's files: part_<rank>, side_<rank>."""
    pieces = [
        one.state.take_shared(rank=rank, world_size=len(trainings)) for rank, one in enumerate(trainings)
    ]
    for rank, one in enumerate(pieces):
        with (directory / f"part_{rank}").open("wb") as stream:
            one.write_part(stream)
        with (directory / f"side_{rank}").open("wb") as stream:
            one.write_side(stream)
    return pieces


def parts(directory: Path, count: int) -> list[Path]:
    return [directory / f"part_{rank}" for rank in range(count)]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_every_rank_gets_its_own_bits_back(tmp_path: Path, world_size: int) -> None:
    trainings = [Training(rank) for rank in range(world_size)]
    bits, taken = [], []
    for rank, one in enumerate(trainings):
        torch.manual_seed(rank)
        bits.append(one.bits())
        taken.append(one.state.take_shared(rank=rank, world_size=world_size))
        # What was taken is a copy.
        one.step()
        one.own.weight.data.zero_()
    for rank, pieces in enumerate(taken):
        with (tmp_path / f"part_{rank}").open("wb") as stream:
            pieces.write_part(stream)
        with (tmp_path / f"side_{rank}").open("wb") as stream:
            pieces.write_side(stream)

    for rank in range(world_size):
        fresh = Training(rank=9)
        fresh.step()
        fresh.state.read_shared(tmp_path / f"side_{rank}", parts(tmp_path, world_size), taken[0].replicated)
        assert fresh.bits() == bits[rank]


def test_what_is_shared_is_written_once(tmp_path: Path) -> None:
    trainings = [Training(rank) for rank in range(4)]
    for one in trainings:
        one.optimizer.zero_grad()
    save(tmp_path, trainings)
    with (tmp_path / "whole").open("wb") as stream:
        trainings[0].state.write(stream)
    whole, written = (tmp_path / "whole").stat().st_size, [one.stat().st_size for one in parts(tmp_path, 4)]
    assert sum(written) < 1.2 * whole
    assert max(written) < 0.45 * whole
    numbers = [number for one in parts(tmp_path, 4) for number in torch.load(one)["tensors"]]
    assert len(numbers) == len(set(numbers))


def test_ranks_that_differ_where_they_should_not_have_other_fingerprints(tmp_path: Path) -> None:
    right = save(tmp_path, [Training(0), Training(1)])
    assert right[0].replicated == right[1].replicated
    wrong = save(tmp_path, [Training(0, per_rank=()), Training(1, per_rank=())])
    assert wrong[0].replicated != wrong[1].replicated
    mine, theirs = (Training(0).state.fingerprints(tmp_path / f"side_{rank}") for rank in range(2))
    assert [name for name in mine if mine[name] != theirs[name]] == ["own"]
    assert Training(0).state.fingerprints(tmp_path / "nothing") == {}


def test_parts_that_do_not_belong_together_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    trainings = [Training(0), Training(1)]
    pieces = save(tmp_path, trainings)
    later = tmp_path / "later"
    later.mkdir()
    for one in trainings:
        one.step()
    save(later, trainings)

    fresh = Training(0)
    before = fresh.bits()
    own, (first, second) = tmp_path / "side_0", parts(tmp_path, 2)
    for wrong, reason in (
        ([first], "hold .* tensors of"),
        ([first, first], "as another rank's part has"),
        ([first, later / "part_1"], "not the state that was saved"),
        ([first, own], "no part of a shared state"),
        ([first, tmp_path / "absent"], "cannot be loaded"),
    ):
        with pytest.raises(CheckpointManifestError, match=reason):
            fresh.state.read_shared(own, wrong, pieces[0].replicated)
    assert fresh.bits() == before
    fresh.step()
    fresh.state.read_shared(own, [first, second], pieces[0].replicated)
    assert fresh.bits() == before


def test_a_tensor_that_cannot_be_shared_is_named() -> None:
    net = nn.Linear(2, 2)
    net.register_parameter("rows", nn.Parameter(torch.eye(2).to_sparse()))
    with pytest.raises(CheckpointStateError, match=r"model: it holds a Tensor \(torch.sparse_coo\)"):
        TrainState(model=net).take_shared(rank=0, world_size=2)


def test_a_part_that_is_not_there_is_no_rank_own() -> None:
    with pytest.raises(UsageError, match=r"per_rank.*names \['ema'\]"):
        TrainState(model=nn.Linear(1, 1), per_rank="ema")
