"""The weights of a checkpoint, whole or sharded, are what safetensors and plain PyTorch load; nothing that lies there is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import Shard

from recovery.checkpoint.contribution import Layout
from recovery.cli.export_weights import export_weights
from recovery.errors import (
    ROWS,
    CheckpointDigestError,
    CheckpointManifestError,
    CheckpointStateError,
    UsageError,
)
from recovery.torch import TrainState
from tests.torch.sharded_world import export, known, save, save_all

SIZE = (5, 7)


def test_a_sharded_model_is_put_together_and_a_configuration_stays(tmp_path: Path) -> None:
    save_all(tmp_path / "ckpt", (4,), SIZE, (Shard(0),))
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    done = export(tmp_path / "ckpt", folder)

    assert done.returncode == 0, done.stderr
    assert "2 tensors, 148 bytes, of step 10 that 4 ranks saved" in done.stdout
    found = load_file(folder / "model.safetensors")
    assert torch.equal(found["weight"], known(SIZE))
    assert found["seen"] == 7
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(UsageError, match="weights lie there already"):
        export_weights(tmp_path / "ckpt", folder)


def test_a_whole_model_fills_several_files_with_an_index(tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    net[2].weight = net[0].weight
    net.half()
    path = save(tmp_path, TrainState(model=net), rank=0, world_size=1, layout=Layout.RANK)

    export_weights(path, tmp_path / "new/weights", file_bytes=200)

    index = json.loads((tmp_path / "new/weights/model.safetensors.index.json").read_bytes())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) == int(files[0][15:20]) > 1
    assert files[0].startswith("model-00001-of-")
    found: dict[str, torch.Tensor] = {}
    for file in files:
        found |= load_file(tmp_path / "new/weights" / file)
    fresh = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)).half()
    fresh.load_state_dict(found)
    expected = net.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in fresh.state_dict().items())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in expected.values())


def test_a_damaged_checkpoint_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    save_all(tmp_path / "ckpt", (2,), SIZE, (Shard(0),))
    path = tmp_path / "ckpt/1/train-1_10.ckpt"
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    path.write_bytes(content)

    with pytest.raises(CheckpointDigestError, match=r"1/train-1_10.ckpt does not match its manifest"):
        export_weights(tmp_path / "ckpt", tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


def test_the_command_says_what_is_wrong_and_of_no_plan(tmp_path: Path) -> None:
    save_all(tmp_path / "ckpt", (2,), SIZE, (Shard(0),))
    path = tmp_path / "ckpt/1/train-1_10.ckpt"
    path.write_bytes(path.read_bytes()[:-1])
    done = export(tmp_path / "ckpt", tmp_path / "weights")
    assert done.returncode == ROWS["CHECKPOINT_MANIFEST"].exit_code
    reason = "of step 10, saved by 2 ranks, the files of rank 1 cannot be read from here"
    assert done.stderr == f"CHECKPOINT_MANIFEST: {tmp_path / 'ckpt'}: no step is whole: {reason}.\n"


def test_one_ranks_shards_are_no_model(tmp_path: Path) -> None:
    save_all(tmp_path / "ckpt", (2,), SIZE, (Shard(0),))
    with pytest.raises(CheckpointManifestError, match="a part of the state"):
        export_weights(tmp_path / "ckpt/0/train-1_10.ckpt", tmp_path / "weights")


def test_a_part_that_is_no_model_is_refused_with_what_there_is(tmp_path: Path) -> None:
    save_all(tmp_path / "ckpt", (2,), SIZE, (Shard(0),))
    with pytest.raises(CheckpointStateError, match="holds no tensor by name"):
        export_weights(tmp_path / "ckpt", tmp_path / "weights", part="optimizer")
    with pytest.raises(CheckpointStateError, match=r"it has: model \(1\), optimizer \(1\)"):
        export_weights(tmp_path / "ckpt", tmp_path / "weights", part="teacher")
