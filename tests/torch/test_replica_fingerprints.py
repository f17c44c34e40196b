"""What is said of a state that all ranks must have alike: any bit of it shows, and nothing that a rank may have of its own does."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from recovery.torch import TrainState
from recovery.torch.replica_fingerprints import Replicas

FLIPS = 1_000


@pytest.fixture(autouse=True)
def world_of_one() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    distributed.destroy_process_group()


class Net(nn.Module):
    """With a batch norm, a mask, and a counter that every pass changes."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
        self.head = nn.Linear(6, 1)
        self.body[0].requires_grad_(not frozen)
        self.register_buffer("mask", torch.ones(6))
        self.register_buffer("passes", torch.zeros(1))

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.get_buffer("passes").add_(1)
        found: torch.Tensor = self.head(self.body(rows) * self.get_buffer("mask"))
        return found


class Training:
    """One rank."""

    def __init__(
        self, kind: Callable[..., Any] = torch.optim.AdamW, *, frozen: bool = False, rank: int = 0
    ) -> None:
        torch.manual_seed(3)
        self.net = Net(frozen=frozen)
        self.model = DistributedDataParallel(self.net, find_unused_parameters=True)
        self.optimizer = kind([one for one in self.net.parameters() if one.requires_grad], lr=0.1)
        self.parts: dict[str, list[Any]] = {"model": [self.model], "optimizer": [self.optimizer]}
        self.replicas, self.rank = Replicas(), rank
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(self.steps))
        self.optimizer.zero_grad()
        self.model(rows).square().sum().backward()
        self.optimizer.step()
        # What each rank has of its own, whose samples are others.
        self.net.get_buffer("body.1.running_mean").add_(self.rank)

    def said(self) -> dict[str, str]:
        return self.replicas.fingerprints(self.parts)


def tensors_of(training: Training) -> list[tuple[str, torch.Tensor]]:
    states = [
        (f"optimizer[0] {key} of model[0].{name}", value)
        for name, parameter in training.net.named_parameters()
        for key, value in training.optimizer.state[parameter].items()
    ]
    weights = [
        (f"model[0].{name}", parameter.detach()) for name, parameter in training.net.named_parameters()
    ]
    return [*weights, *states]


def flip(tensor: torch.Tensor, bit: int) -> None:
    # Not as an operator does it, which counts what it changes.
    tensor.numpy().reshape(-1).view("uint8")[bit // 8] ^= 1 << bit % 8


def test_every_flipped_bit_shows_and_its_tensor_is_named() -> None:
    training = Training()
    training.step()
    training.said()
    training.step()
    sound = training.said()
    assert len(sound) <= 64
    draw, tensors = random.Random(1), tensors_of(training)
    for number in range(FLIPS):
        name, tensor = tensors[number % len(tensors)]
        bit = draw.randrange(tensor.numel() * tensor.element_size() * 8)
        flip(tensor, bit)
        found = training.said()
        assert [key for key in sound if found[key] != sound[key]] == [name]
        flip(tensor, bit)
    assert training.said() == sound


def test_sound_ranks_say_the_same_whatever_each_has_of_its_own() -> None:
    first, second = Training(), Training(rank=1)
    for _ in range(50):
        for training in (first, second):
            training.step()
        assert first.said() == second.said() != {}
    assert not [name for name in first.said() if "running" in name or "passes" in name or "mask" in name]


def test_large_models_are_said_in_groups() -> None:
    training = Training()
    deep = DistributedDataParallel(nn.Sequential(*(nn.Linear(2, 2) for _ in range(40))))
    training.parts["model"].append(deep)
    said = Replicas().fingerprints(training.parts)
    assert 40 < len(said) <= 64
    assert "model[1].0.weight to model[1].0.bias" in said
    with torch.no_grad():
        deep.module[7].bias[0] += 1
    found = Replicas().fingerprints(training.parts)
    assert [name for name in said if found[name] != said[name]] == ["model[1].7.weight to model[1].7.bias"]


def test_weights_that_each_rank_trains_apart_are_not_compared() -> None:
    training = Training(frozen=True)
    training.step()
    assert "model[0].body.0.weight" not in training.said(), "frozen ones may be each rank's"
    assert "model[0].head.weight" in training.said()
    training.net.body[0].requires_grad_(True)
    assert training.said() == {}
    training.net.body[0].requires_grad_(False)
    assert training.said() == {}, "frozen again it is as each rank has trained it"


def test_weights_that_were_unfrozen_before_training_began_are_not_compared() -> None:
    training = Training(frozen=True)
    training.net.body[0].requires_grad_(True)
    assert training.said() == {}


def test_names_that_differ_in_their_ends_are_told_apart() -> None:
    deep: nn.Module = nn.Linear(2, 2)
    for _ in range(30):
        deep = nn.ModuleDict({"language_model": deep})
    parts = {"model": [DistributedDataParallel(Deep(deep))]}
    assert len(Replicas().fingerprints(parts)) == 2
    wide = nn.ModuleDict({f"{number}{'x' * 120}": nn.Linear(1, 1, bias=False) for number in range(3)})
    assert len(Replicas().fingerprints({"model": [DistributedDataParallel(Deep(wide))]})) == 3


class Deep(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def of_its_own(state, bucket):  # type: ignore[no-untyped-def]
    """A communication hook that averages nothing. Without types: torch compares them, and those of this file are text."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class AveragesNowAndThen(torch.optim.SGD):
    """As torch's own for that are made, which have to be gone before their world."""

    __module__ = "torch.distributed.optim.post_localSGD_optimizer"


def test_ranks_that_are_to_differ_are_not_compared() -> None:
    assert Training(torch.optim.SGD).said() != {}
    assert Training(AveragesNowAndThen).said() == {}
    exact, local = Training(), Training()
    exact.model.register_comm_hook(None, default_hooks.allreduce_hook)
    assert exact.said() != {}
    local.model.register_comm_hook(None, of_its_own)
    assert local.said() == {}
    compressed = Training()
    compressed.model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(of_its_own))
    assert compressed.said() == {}


def test_parts_that_are_each_ranks_own_are_not_compared() -> None:
    training = Training()
    training.step()
    named = {
        own: TrainState(model=training.model, optimizer=training.optimizer, per_rank=own).replica()
        for own in ((), ("optimizer",), ("model",))
    }
    assert any(name.startswith("optimizer") for name in named[()])
    assert [name for name in named["optimizer",] if name.startswith("optimizer")] == []
    assert named["optimizer",] != {} == named["model",]


def test_models_without_the_wrapper_are_not_compared() -> None:
    training = Training()
    training.parts["model"] = [training.net]
    assert Replicas().fingerprints(training.parts) == {}


def test_what_the_wrapper_leaves_alone_is_not_compared() -> None:
    net = Net()
    ignored = ["head.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignored)  # type: ignore[no-untyped-call]  # of torch
    parts = {"model": [DistributedDataParallel(net)]}
    said = Replicas().fingerprints(parts)
    assert "model[0].head.weight" in said
    assert "model[0].head.bias" not in said


def test_tensors_whose_bits_are_not_in_one_place_are_left_out() -> None:
    training = Training()
    training.step()
    weight = training.net.head.weight
    training.optimizer.state[training.net.head.bias] = torch.ones(1)
    training.optimizer.state[weight]["exp_avg"] = torch.eye(6).to_sparse()
    assert "optimizer[0] exp_avg of model[0].head.weight" not in training.said()
    assert "optimizer[0] exp_avg_sq of model[0].head.weight" in training.said()


def test_without_a_world_there_is_nobody_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    monkeypatch.setattr(distributed, "is_initialized", lambda: False)
    assert training.said() == {}
