"""A state that is spread over the ranks, as live rollback treats it: whose parts are alike, and how a part goes into another world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import TrainState, fingerprint, live_content, live_header, live_shards, spread
from recovery.torch.live_memory import LiveMemory
from recovery.training.live import StepPosition
from tests.torch.sharded_world import Training, as_rank

ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()
UNEVEN = (5, 7)
"""The last rank of four has no row at all."""
AT = StepPosition(5, 1, 5)


@pytest.mark.parametrize(
    ("shape", "placements", "expected"),
    [
        ((2, 2), (WHOLE, ROWS), [(0, 2), (1, 3), (0, 2), (1, 3)]),
        ((2, 2), (ROWS, WHOLE), [(0, 1), (0, 1), (2, 3), (2, 3)]),
        ((2, 2), (WHOLE, WHOLE), [(0, 1, 2, 3)] * 4),
        ((2, 2), (ROWS, COLUMNS), [(0,), (1,), (2,), (3,)]),
        ((2, 2), (_StridedShard(0, split_factor=2), ROWS), [(0,), (1,), (2,), (3,)]),
        ((4,), (ROWS,), [(0,), (1,), (2,), (3,)]),
        (
            (2, 2, 2),
            (WHOLE, ROWS, COLUMNS),
            [(0, 4), (1, 5), (2, 6), (3, 7), (0, 4), (1, 5), (2, 6), (3, 7)],
        ),
    ],
)
def test_ranks_at_one_place_of_what_is_cut_hold_the_same(
    shape: tuple[int, ...], placements: Sequence[Placement], expected: list[tuple[int, ...]]
) -> None:
    for rank, replicas in enumerate(expected):
        with as_rank(rank, *shape) as mesh:
            training = Training(UNEVEN, mesh, placements, filled=True)
            parts = training.state.live_parts()
            assert parts.replicas == replicas
            reasons = training.state.why_not_live()
            assert bool(reasons) == (len(replicas) == 1)
            assert all("no rank has what a lost one had" in reason for reason in reasons)


def test_what_is_not_spread_is_alike_on_all_ranks() -> None:
    with as_rank(0, 2):
        state = Training(UNEVEN, None, (), filled=True).state
        assert state.live_parts().replicas == ()
        assert state.why_not_live() == ()


def test_of_two_tensors_the_ranks_count_that_hold_both() -> None:
    with as_rank(1, 2, 2) as mesh:
        training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        others = Training(UNEVEN, mesh, (ROWS, WHOLE), filled=True)
        tensors = [training.net.weight, others.net.weight, torch.zeros(2)]
        assert live_shards.replicas(tensors) == (1,)


def test_a_part_goes_into_a_tensor_of_the_next_world() -> None:
    with as_rank(1, 2, 2) as mesh:
        old = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        old.net.weight.grad = old.net.weight.detach() + 1
        parts = old.state.live_parts()
        memory = LiveMemory(parts)
        memory.begin(5)
        assert memory.replicas == (1, 3)
        tree = _sent(memory._tree())
        expected = [spread.local(one).clone() for one in (old.net.weight, old.momentum, old.net.weight.grad)]
    with as_rank(3, 2, 2) as mesh:
        new = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=False)
        content = new.state.live_parts()
        live_content.put(content, tree, {})
        assert new.net.weight.grad is not None
        found = [new.net.weight, new.momentum, new.net.weight.grad]
        for one, part in zip(found, expected, strict=True):
            assert isinstance(one, DTensor)
            assert one.device_mesh is mesh
            assert (one.placements, one.shape) == ((WHOLE, ROWS), torch.Size(UNEVEN))
            assert torch.equal(one.to_local(), part)
        again = LiveMemory(content)
        again.begin(5)
        assert again.digest() == fingerprint.joined(fingerprint.of_parts(tree))


def _sent(tree: dict[str, object]) -> dict[str, torch.Tensor]:
    """What comes out at the other end."""
    packed = live_header.pack(tree)
    found: dict[str, torch.Tensor] = live_header.unpack(
        packed.header, [one.clone() for one in packed.tensors]
    )
    return found


def test_what_was_let_go_of_is_still_given() -> None:
    with as_rank(0, 2, 2) as mesh:
        training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        memory = LiveMemory(training.state.live_parts())
        memory.begin(5)
        before = memory.digest()
        structure, why_not = memory.offer()
        assert (bool(structure), why_not) == (True, "")
        assert memory._parts.modules == {}, "a module would keep the groups of its world"
        assert (memory.why_not(), memory.digest()) == ("", before)


def test_parts_of_another_size_have_another_structure() -> None:
    structures = []
    for rank in (0, 1, 2):
        with as_rank(rank, 2, 2) as mesh:
            training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
            structures.append(training.state.live_parts().structure())
    assert structures[0] == structures[2]
    assert structures[0] != structures[1], "three rows and two"


def test_a_mesh_that_was_built_otherwise_is_refused() -> None:
    with as_rank(0, 2, 2) as mesh:
        memory = LiveMemory(Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True).state.live_parts())
        memory.begin(5)
        structure, _ = memory.offer()
        other = Training(UNEVEN, mesh, (ROWS, WHOLE), filled=True).state
        with pytest.raises(
            CheckpointStateError, match=r"lets ranks \[0, 1\] hold alike, that of rank 0 ranks \[0, 2\]"
        ):
            memory.transfer(other, source=0, rank=0, shapes=structure, at=AT, replicas=(0, 2))
        assert memory.why_not() == ""


@pytest.mark.parametrize("through", ["tensor", "part"])
def test_a_change_of_a_parameter_behind_the_boundary_is_seen(through: str) -> None:
    with as_rank(0, 2, 2) as mesh:
        training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        memory = LiveMemory(training.state.live_parts())
        part = spread.local(training.net.weight)
        memory.begin(5)
        assert memory.why_not() == ""
        with torch.no_grad():
            (training.net.weight if through == "tensor" else part).add_(1)
        assert memory.why_not() == "parameter model[0].weight was changed outside of an optimizer"


def test_what_an_optimizer_keeps_in_another_way_cannot_be_sent() -> None:
    with as_rank(0, 2, 2) as mesh:
        training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        assert isinstance(training.momentum, DTensor)
        everywhere = training.momentum.redistribute(mesh, (WHOLE, WHOLE))
        training.optimizer.state[training.net.weight]["momentum_buffer"] = everywhere
        memory = LiveMemory(training.state.live_parts())
        memory.begin(5)
        assert "keeps momentum_buffer of a parameter in another way over the ranks" in memory.why_not()


def fully_sharded(mesh: DeviceMesh, *layers: nn.Module) -> Any:
    """A model of FSDP2."""
    net = nn.Sequential(*layers)
    fully_shard(net, mesh=mesh)
    return net


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm1d(4), "statistics that every rank has for itself"),
        (nn.BatchNorm1d(4).eval(), ""),
        (nn.BatchNorm1d(4, track_running_stats=False), ""),
        (nn.SyncBatchNorm(4), ""),
        (nn.LayerNorm(4), ""),
    ],
)
def test_statistics_of_one_rank_alone_are_named_when_training_begins(layer: nn.Module, reason: str) -> None:
    with as_rank(0, 2, 2) as mesh:
        reasons = TrainState(model=fully_sharded(mesh, nn.Linear(4, 4), layer)).why_not_live()
        assert bool(reasons) == bool(reason)
        assert all(reason in one for one in reasons)


def test_a_buffer_that_is_spread_is_named() -> None:
    with as_rank(0, 2, 2) as mesh:
        training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        training.net.register_buffer("table", training.net.weight.detach().clone())
        assert training.state.why_not_live() == (
            "Buffer model[0].table is spread over the ranks, which only parameters may be.",
        )


@pytest.mark.parametrize("switch", ["set_requires_gradient_sync", "set_requires_all_reduce"])
def test_gradients_that_were_not_added_over_the_ranks_cannot_be_given(switch: str) -> None:
    with as_rank(0, 2, 2) as mesh:
        net = fully_sharded(mesh, nn.Linear(4, 4), nn.LayerNorm(4))
        memory = LiveMemory(TrainState(model=net).live_parts())
        net(torch.ones(2, 4)).sum().backward()
        memory.boundary(5)
        assert memory.why_not() == ""
        getattr(net, switch)(False)
        net(torch.ones(2, 4)).sum().backward()
        memory.boundary(6)
        assert "the gradient of 0.weight was not added over the ranks" in memory.why_not()


def test_gradients_that_are_added_to_in_their_own_part_are_not_what_was_held() -> None:
    with as_rank(0, 2, 2) as mesh:
        net = fully_sharded(mesh, nn.Linear(4, 4))
        memory = LiveMemory(TrainState(model=net).live_parts())
        for step in range(1, 7):
            net.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            memory.boundary(step)
        assert memory._kept.gradients.tensors() is memory._kept.gradients._held
        net(torch.ones(2, 4)).sum().backward()
        assert "gradients were changed in place" in memory.why_not()
        memory.boundary(7)
        assert memory._kept.gradients.tensors() is memory._kept.gradients._copies
        assert memory.why_not() == ""


def test_a_gradient_that_is_still_to_be_added_over_the_ranks_cannot_be_given() -> None:
    with as_rank(0, 2, 2) as mesh:
        training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        training.net.weight.grad = DTensor.from_local(
            spread.local(training.net.weight),
            mesh,
            (Partial(), ROWS),
            run_check=False,
            shape=torch.Size(UNEVEN),
            stride=(UNEVEN[1], 1),
        )
        memory = LiveMemory(training.state.live_parts())
        memory.begin(5)
        assert (
            memory.why_not() == "the gradient of model[0].weight is spread in another way than the parameter"
        )


def test_a_parameter_that_is_whole_beside_others_that_are_spread_is_named() -> None:
    with as_rank(0, 2, 2) as mesh:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        fully_shard(net[0], mesh=mesh)
        [reason] = TrainState(model=net).why_not_live()
        assert "Parameter model[0].1.weight is trained, and is not spread over the ranks" in reason
        net[1].requires_grad_(False)
        assert TrainState(model=net).why_not_live() == ()


def test_what_an_optimizer_keeps_in_its_own_way_is_no_error() -> None:
    with as_rank(0, 2, 2) as mesh:
        training = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True)
        training.optimizer.state[training.net.weight] = (1, 2)
        memory = LiveMemory(training.state.live_parts())
        memory.begin(5)
        assert memory.offer()[1] == ""


def test_a_rank_that_is_not_on_the_mesh_is_like_nobody() -> None:
    with as_rank(2, 3):
        mesh = DeviceMesh("cpu", [0, 1])
        weight = DTensor.from_local(
            torch.zeros(2), mesh, (WHOLE,), run_check=False, shape=torch.Size([2]), stride=(1,)
        )
        assert live_shards.replicas([weight]) == (2,)


def test_the_group_of_the_mesh_is_used_where_it_has_these_ranks() -> None:
    with as_rank(3, 2, 2) as mesh:
        weight = Training(UNEVEN, mesh, (WHOLE, ROWS), filled=True).net.weight
        assert live_shards.group_of([torch.zeros(1), weight], (1, 3)) is mesh.get_group(0)
        assert live_shards.group_of([weight], (0, 3)) is None


def test_a_module_that_was_left_in_its_forward_pass_has_its_parts_again() -> None:
    class Interrupted(nn.Module):
        @override
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            raise ConnectionResetError

    with as_rank(0, 2, 2) as mesh:
        net = fully_sharded(mesh, nn.Linear(4, 4), Interrupted())
        memory = LiveMemory(TrainState(model=net).live_parts())
        memory.begin(5)
        with pytest.raises(ConnectionResetError):
            net(torch.ones(2, 4))
        assert not isinstance(net[0].weight, DTensor), "the whole weight lies in its place"
        assert memory.offer()[1] == ""
