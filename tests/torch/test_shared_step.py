"""A step that ranks have written together is read by a job of another size, and its weights leave as safetensors: nothing is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from recovery.checkpoint.contribution import Layout, Manifest, ManifestFile
from recovery.checkpoint.publish import publish
from recovery.cli.export_weights import export_weights
from recovery.errors import CheckpointDigestError, CheckpointManifestError
from recovery.torch import TrainState, module_names
from recovery.training.shared_layout import contents
from recovery.training.shared_names import rank_prefix
from tests.torch import sharded_world

SIZE = (5, 7)


class Training:
    """A rank of a replicated training: its batch statistics and the part `own` are its own."""

    def __init__(self, rank: int | None) -> None:
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 6))
        self.own = nn.Linear(2, 2)
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.state = TrainState(model=self.net, optimizer=self.optimizer, own=self.own, per_rank=["own"])
        if rank is None:
            for parameter in self.net.parameters():
                nn.init.zeros_(parameter)
            return
        nn.init.constant_(self.own.weight, rank)
        self.net.eval()(torch.ones(2, 6)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.net.train()(torch.randn(4, 6) + rank)

    def tensors(self) -> dict[str, torch.Tensor]:
        optimizer = self.optimizer.state_dict()["state"]
        moments = {f"{number}.{key}": one for number, row in optimizer.items() for key, one in row.items()}
        return {**self.net.state_dict(), **moments, "own": self.own.weight.detach()}


def save(directory: Path, states: list[TrainState], *, step: int = 10) -> None:
    """Publish what each rank of a job writes into the one directory of all."""
    world_size = len(states)
    for rank, state in enumerate(states):
        pieces = state.take_shared(rank=rank, world_size=world_size)

        def manifest(
            files: tuple[ManifestFile, ...], rank: int = rank, replicated: str = pieces.replicated
        ) -> Manifest:
            return Manifest(
                job="here", run=1, rank=rank, world_size=world_size, incarnation=1, generation=1, step=step, epoch=1,
                step_in_epoch=step, files=files, layout=Layout.SHARED, versions={}, integrated=True, replicated=replicated,
            )  # fmt: skip

        name = f"{rank_prefix('train', rank)}-1_{step}.ckpt"
        publish(directory, contents(name, pieces), manifest)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("world_size", [1, 4])
def test_the_weights_of_a_shared_step_are_put_together(tmp_path: Path, world_size: int) -> None:
    trainings = [Training(rank) for rank in range(world_size)]
    save(tmp_path / "ckpt", [one.state for one in trainings])
    save(tmp_path / "ckpt", [Training(rank).state for rank in range(world_size - 1)], step=20)

    done = sharded_world.export(tmp_path / "ckpt", tmp_path / "weights", "--step", 10)

    assert done.returncode == 0, done.stderr
    assert f"of step 10 that {world_size} ranks saved" in done.stdout
    found = load_file(tmp_path / "weights/model.safetensors")
    # Rank 0's batch statistics too, which no other rank has.
    assert same(found, trainings[0].net.state_dict())
    Training(None).net.load_state_dict(found)


def test_the_part_of_each_rank_is_rank_0s(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", [Training(rank).state for rank in range(3)])
    export_weights(tmp_path / "ckpt", tmp_path / "weights", part="own")
    assert not load_file(tmp_path / "weights/model.safetensors")["weight"].any()


def test_a_shared_step_of_an_earlier_release_has_plain_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = [Training(rank) for rank in range(2)]
    whole = {key: one.clone() for key, one in trainings[0].net.state_dict().items()}
    with monkeypatch.context() as earlier:
        # It saved a compiled block under the wrapper's names.
        earlier.setattr(module_names, "state_of", lambda item: item.state_dict())
        earlier.setattr(module_names, "plain", lambda name: name)
        for one in trainings:
            compiled: Any = torch.compile(one.net[0], backend="eager")
            one.net[0] = compiled
        assert "0._orig_mod.weight" in trainings[0].net.state_dict()
        save(tmp_path / "ckpt", [one.state for one in trainings])
    export_weights(tmp_path / "ckpt", tmp_path / "weights")
    assert same(load_file(tmp_path / "weights/model.safetensors"), whole)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_job_of_another_size_begins_with_a_shared_step(tmp_path: Path, world_size: int) -> None:
    trainings = [Training(rank) for rank in range(world_size)]
    save(tmp_path, [one.state for one in trainings])
    fresh = Training(None)

    place = fresh.state.read_sharded(tmp_path)

    assert (place.step, place.world_size) == (10, world_size)
    assert same(fresh.tensors(), trainings[0].tensors())
    # What was read is the job's own, no longer the files'.
    before = {key: one.clone() for key, one in fresh.tensors().items()}
    for path in tmp_path.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert same(fresh.tensors(), before)


def test_a_sharded_model_begins_with_a_shared_step(tmp_path: Path) -> None:
    save(tmp_path, [sharded_world.Training(SIZE, None, (), filled=True).state for _ in range(4)])
    whole = sharded_world.known(SIZE)
    for rank in range(2):
        with sharded_world.as_rank(rank, 2) as mesh:
            fresh = sharded_world.Training(SIZE, mesh, (Shard(0),), filled=False)
            fresh.state.read_sharded(tmp_path)
            weight = fresh.net.weight.detach()
            assert isinstance(weight, DTensor)
            assert isinstance(fresh.momentum, DTensor)
            assert torch.equal(weight.to_local(), whole.tensor_split([3])[rank])
            assert torch.equal(fresh.momentum.to_local(), -weight.to_local())


@pytest.mark.parametrize("name", ["train.rank1-1_10.ckpt", "train.rank1-1_10.side"])
def test_a_damaged_file_of_any_rank_is_refused(tmp_path: Path, name: str) -> None:
    save(tmp_path / "ckpt", [Training(rank).state for rank in range(2)])
    path = tmp_path / "ckpt" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDigestError, match=name):
        export_weights(tmp_path / "ckpt", tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


def test_parts_of_two_states_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    trainings = [Training(rank) for rank in range(2)]
    save(tmp_path / "ckpt", [one.state for one in trainings])
    for parameter in trainings[1].net.parameters():
        nn.init.ones_(parameter)
    save(tmp_path / "later", [one.state for one in trainings])
    for beside in (tmp_path / "later").glob("train.rank1-*"):
        beside.rename(tmp_path / "ckpt" / beside.name)
    fresh = Training(None)
    with pytest.raises(CheckpointManifestError, match="not the state that was saved"):
        fresh.state.read_sharded(tmp_path / "ckpt")
    assert not any(one.any() for one in fresh.net.parameters())
