"""Each rank saves its shards and takes them back; another mesh reads the same numbers from all ranks' files, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from recovery.checkpoint.contribution import Layout
from recovery.errors import CheckpointDigestError, CheckpointManifestError, CheckpointStateError
from recovery.torch import TrainState
from recovery.torch import payload as payloads
from tests.torch.sharded_world import Training, as_rank, known, save, save_all

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()
LAYOUTS = [
    ((2,), (ROWS,)),
    ((4,), (ROWS,)),
    ((3,), (COLUMNS,)),
    ((2, 2), (WHOLE, ROWS)),
    ((2, 2), (ROWS, COLUMNS)),
    ((2, 2), (_StridedShard(0, split_factor=2), ROWS)),
]
UNEVEN = (5, 7)
"""The last rank of four has no row at all."""


@pytest.mark.parametrize(("shape", "placements"), LAYOUTS)
def test_a_rank_takes_its_own_shards_back(
    tmp_path: Path, shape: tuple[int, ...], placements: Sequence[Placement]
) -> None:
    for rank in range(torch.Size(shape).numel()):
        with as_rank(rank, *shape) as mesh:
            saved = Training(UNEVEN, mesh, placements, filled=True)
            saved.net.weight.grad = saved.net.weight.detach() + 1
            path = save(tmp_path, saved.state, rank=rank, world_size=torch.Size(shape).numel())
            found = Training(UNEVEN, mesh, placements, filled=False)
            found.state.read(path)
            assert saved.state.sharded
            for mine, theirs in (
                (found.net.weight.detach(), saved.net.weight.detach()),
                (found.momentum, saved.momentum),
                (found.net.weight.grad, saved.net.weight.grad),
            ):
                assert isinstance(mine, DTensor)
                assert isinstance(theirs, DTensor)
                assert (mine.placements, mine.shape) == (theirs.placements, theirs.shape)
                assert torch.equal(mine.to_local(), theirs.to_local())
            assert found.net.seen == 7


def test_a_file_holds_plain_tensors_and_words_only(tmp_path: Path) -> None:
    save_all(tmp_path, (2,), UNEVEN, (ROWS,))
    payload = torch.load(tmp_path / "1/train-1_10.ckpt", weights_only=True)
    assert payload["format"] == payloads.SHARDED
    assert type(payload["parts"]["model"][0]["weight"]) is torch.Tensor
    assert payload["parts"]["model"][0]["weight"].shape == (2, 7)
    assert payload["parts"]["model"][0]._metadata, "what a module says of its versions is lost"
    assert payload[payloads.SHARDS]["meshes"] == [{"shape": [2], "names": ["d0"], "ranks": [0, 1]}]
    assert payload[payloads.SHARDS]["tensors"][0] == {
        "at": ("parts", "model", 0, "weight"),
        "mesh": 0,
        "placements": [["shard", 0]],
        "shape": [5, 7],
        "stride": [7, 1],
        "dtype": "torch.float32",
        "offsets": [3, 0],
    }


def test_a_whole_state_is_saved_as_before(tmp_path: Path) -> None:
    whole = Training(UNEVEN, None, (), filled=True)
    path = save(tmp_path, whole.state, rank=0, world_size=1, layout=Layout.RANK)
    payload = torch.load(path, weights_only=True)
    assert payload["format"] == payloads.WHOLE
    assert payloads.SHARDS not in payload
    assert not whole.state.sharded


@pytest.mark.parametrize(
    ("shape", "placements", "reason"),
    [
        ((4,), (ROWS,), "a mesh of 2 ranks"),
        ((2,), (COLUMNS,), "is placed by"),
        (None, (), "a mesh of 2 ranks"),
    ],
    ids=["another mesh", "another placement", "no mesh"],
)
def test_another_layout_is_refused_before_anything_is_loaded(
    tmp_path: Path, shape: tuple[int, ...] | None, placements: Sequence[Placement], reason: str
) -> None:
    save_all(tmp_path, (2,), UNEVEN, (ROWS,))
    with as_rank(0, *(shape or (1,))) as mesh:
        other = Training(UNEVEN, mesh if shape else None, placements, filled=False)
        with pytest.raises(CheckpointStateError, match=reason) as refused:
            other.state.read(tmp_path / "0/train-1_10.ckpt")
        assert "read_sharded" in str(refused.value)
        assert not other.net.state_dict()["seen"]


def test_a_whole_file_is_refused_where_the_state_is_sharded(tmp_path: Path) -> None:
    path = save(
        tmp_path, Training(UNEVEN, None, (), filled=True).state, rank=0, world_size=1, layout=Layout.RANK
    )
    with (
        as_rank(0, 2) as mesh,
        pytest.raises(CheckpointStateError, match="is whole, and the one of this program is sharded"),
    ):
        Training(UNEVEN, mesh, (ROWS,), filled=False).state.read(path)


@pytest.mark.parametrize(("shape", "placements"), [*LAYOUTS[:5], (None, ())], ids=str)
@pytest.mark.parametrize(("saved_shape", "saved_placements"), [*LAYOUTS, (None, ())], ids=str)
def test_any_mesh_reads_what_any_other_has_saved(
    tmp_path: Path,
    saved_shape: tuple[int, ...] | None,
    saved_placements: Sequence[Placement],
    shape: tuple[int, ...] | None,
    placements: Sequence[Placement],
) -> None:
    if saved_shape is None:
        save(
            tmp_path, Training(UNEVEN, None, (), filled=True).state, rank=0, world_size=1, layout=Layout.RANK
        )
    else:
        save_all(tmp_path, saved_shape, UNEVEN, saved_placements)
    for rank in range(torch.Size(shape or (1,)).numel()):
        with as_rank(rank, *(shape or (1,))) as mesh:
            found = Training(UNEVEN, mesh if shape else None, placements, filled=False)
            place = found.state.read_sharded(tmp_path)
            assert (place.step, place.world_size) == (10, torch.Size(saved_shape or (1,)).numel())
            for tensor, whole in (
                (found.net.weight.detach(), known(UNEVEN)),
                (found.momentum, -known(UNEVEN)),
            ):
                expected = (
                    distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()
                    if shape
                    else whole
                )
                here = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                assert isinstance(tensor, DTensor) == (shape is not None)
                assert torch.equal(here, expected)
            assert found.net.seen == 7


def test_shards_in_several_pieces_are_refused_on_another_mesh(tmp_path: Path) -> None:
    save_all(tmp_path, (2,), (8, 7), (_StridedShard(0, split_factor=2),))
    with as_rank(0, 2) as mesh, pytest.raises(CheckpointStateError, match="no blocks"):
        Training((8, 7), mesh, (ROWS,), filled=False).state.read_sharded(tmp_path)


def test_a_model_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    save_all(tmp_path, (2,), UNEVEN, (ROWS,))
    with as_rank(0, 1) as mesh, pytest.raises(CheckpointStateError, match=r"Size mismatch.*weight"):
        Training((5, 8), mesh, (ROWS,), filled=False).state.read_sharded(tmp_path)


def test_a_model_of_another_dtype_is_refused_by_name(tmp_path: Path) -> None:
    save_all(tmp_path, (2,), UNEVEN, (ROWS,))
    with as_rank(0, 1) as mesh:
        found = Training(UNEVEN, mesh, (ROWS,), filled=False)
        found.net.double()
        with pytest.raises(
            CheckpointStateError, match=r"weight.*saved as torch.float32 and is torch.float64"
        ):
            found.state.read_sharded(tmp_path)


def test_no_unverified_byte_is_read(tmp_path: Path) -> None:
    save_all(tmp_path, (2,), UNEVEN, (ROWS,))
    path = tmp_path / "1/train-1_10.ckpt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with as_rank(0, 1) as mesh, pytest.raises(CheckpointDigestError, match="1/train-1_10"):
        Training(UNEVEN, mesh, (ROWS,), filled=False).state.read_sharded(tmp_path)


def test_it_says_whose_file_is_missing(tmp_path: Path) -> None:
    save_all(tmp_path, (4,), UNEVEN, (ROWS,))
    (tmp_path / "2/train-1_10.ckpt").unlink()
    with (
        as_rank(0, 1) as mesh,
        pytest.raises(
            CheckpointManifestError, match="saved by 4 ranks, the files of rank 2 cannot be read"
        ) as refused,
    ):
        Training(UNEVEN, mesh, (ROWS,), filled=False).state.read_sharded(tmp_path)
    assert "plan" not in str(refused.value), "no plan is made here"


def test_shards_are_laid_out_for_a_save_that_costs_one_copy(tmp_path: Path) -> None:
    with as_rank(1, 2) as mesh:
        state = Training(UNEVEN, mesh, (ROWS,), filled=True).state
        layout = state.lay_out()
        memory = memoryview(bytearray(layout.size))
        layout.copy_to(memory)
        (tmp_path / "laid_out.ckpt").write_bytes(memory)
        found = Training(UNEVEN, mesh, (ROWS,), filled=False)
        found.state.read(tmp_path / "laid_out.ckpt")
        weight = found.net.weight.detach()
        assert isinstance(weight, DTensor)
        assert torch.equal(weight.to_local(), known(UNEVEN)[3:])


@pytest.mark.parametrize("gradients", [True, False])
def test_a_gradient_that_fsdp_keeps_for_itself_is_not_left_out_of_a_checkpoint_in_silence(
    tmp_path: Path, *, gradients: bool
) -> None:
    with as_rank(0, 2) as mesh:
        net: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        fully_shard(net, mesh=mesh)
        state = TrainState(model=net, gradients=gradients)
        net(torch.ones(2, 4)).sum().backward()
        save(tmp_path, state, rank=0, world_size=2)
        net.set_requires_gradient_sync(False)
        net(torch.ones(2, 4)).sum().backward()
        if not gradients:
            save(tmp_path, state, rank=0, world_size=2, step=20)
            return
        with pytest.raises(
            CheckpointStateError, match=r"model\[0\]\.0\.weight: its gradient was not added over the ranks"
        ):
            save(tmp_path, state, rank=0, world_size=2, step=20)
