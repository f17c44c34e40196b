"""What else touches the generators in a step of training, and that keys at the boundaries go along with it."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._random import OffsetBasedRNGTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from recovery.torch.keyed import key_generators
from recovery.torch.random_state import capture_random_state
from recovery.torch.warm_up import warm_up


def _state() -> str:
    return repr(capture_random_state())


def _dropping() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 32), nn.Dropout(0.5), nn.Linear(32, 1)
    )


def _gradients(model: nn.Module) -> list[list[float]]:
    return [
        parameter.grad.flatten().tolist() for parameter in model.parameters() if parameter.grad is not None
    ]


# --- activation checkpointing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("keyed_between", [False, True])
def test_activations_made_again_are_those_of_the_forward_pass(reentrant: bool, keyed_between: bool) -> None:
    """Even where a boundary lies between: the forward pass takes the generators' states along."""
    data = torch.arange(16.0).reshape(2, 8).requires_grad_()
    kept, again = _dropping(), _dropping()
    key_generators(1, 0, 5)
    kept(data).sum().backward()
    key_generators(1, 0, 5)
    outcome = checkpoint(again, data, use_reentrant=reentrant).sum()
    if keyed_between:
        key_generators(1, 0, 6)
    before = _state()
    outcome.backward()
    assert _gradients(again) == _gradients(kept)
    assert _state() == before, "making them again moves no generator"


def test_a_fork_of_the_generators_that_a_boundary_ends_in_takes_the_key_back() -> None:
    """The one thing that does not go along with keys: a block of torch.random.fork_rng around the loop itself."""
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        key_generators(1, 0, 5)
        inside = _torch_draw()
    assert torch.initial_seed() == 3
    key_generators(1, 0, 5)
    assert _torch_draw() == inside, "until the next boundary"


def _torch_draw() -> float:
    return torch.rand(()).item()


# --- torch.compile -----------------------------------------------------------------------------------------------------


def test_a_model_compiled_in_its_first_step_draws_what_one_compiled_long_ago_draws() -> None:
    """A fresh process compiles in the step in which its peers only run: compiling must move no generator."""

    def step(model: Callable[[torch.Tensor], torch.Tensor]) -> tuple[list[float], str]:
        key_generators(1, 0, 5)
        return model(torch.ones(4, 8)).flatten().tolist(), _state()

    torch._dynamo.reset()
    model = torch.compile(_dropping(), backend="aot_eager")
    assert step(model) == step(model), "the first call compiles, the second does not"


# --- the world ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _pretended_world(rank: int) -> Iterator[None]:
    """A world of two in which nothing is sent."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _replicated_dropout(rank: int, key_rank: int) -> list[float]:
    with _pretended_world(rank), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        mesh = init_device_mesh("cpu", (2,))
        ones = DTensor.from_local(torch.ones(64), mesh, [Replicate()], run_check=False)
        key_generators(1, key_rank, 5)
        dropped = nn.functional.dropout(ones, 0.5)
        assert isinstance(dropped, DTensor)
        local: list[float] = dropped.to_local().tolist()
        return local


def test_a_replicated_dtensor_stays_replicated_only_where_ranks_are_keyed_alike() -> None:
    """Tensor parallelism wants one seed on all ranks of a group: they must be keyed with one rank's number."""
    assert _replicated_dropout(0, key_rank=0) == _replicated_dropout(1, key_rank=0)
    assert _replicated_dropout(0, key_rank=0) != _replicated_dropout(1, key_rank=1)


def test_the_tracker_of_dtensor_keeps_no_state_of_its_own_between_two_draws() -> None:
    """It reads the device's generator at every draw, so whatever the key has set counts. Older releases kept a copy."""

    class Device:
        state = torch.zeros(16, dtype=torch.uint8)

        def get_rng_state(self) -> torch.Tensor:
            return self.state.clone()

        def set_rng_state(self, state: torch.Tensor) -> None:
            self.state = state.clone()

    tracker: Any = OffsetBasedRNGTracker.__new__(OffsetBasedRNGTracker)
    tracker._device, tracker._device_handle = torch.device("cpu"), Device()
    tracker.distribute_region_enabled = False
    seen = []
    for key in (7, 9):
        tracker._device_handle.state = torch.full((16,), key, dtype=torch.uint8)
        with tracker._distribute_region(None):
            pass
        seen.append(tracker._get_device_state()[0].item())
    assert seen == [7, 9]


def test_forming_a_world_and_a_first_step_draw_nothing() -> None:
    """So it does not matter at which step a process was started."""
    key_generators(1, 0, 5)
    before = _state()
    warm_up()
    with _pretended_world(0):
        pass
    assert _state() == before


def test_the_hook_of_power_sgd_keeps_a_generator_that_no_key_reaches() -> None:
    """Its state moves with the steps and is in no part: it is lost with the process, in both modes."""
    with _pretended_world(0):
        hook = PowerSGDState(process_group=None, random_seed=4)
        draws = []
        for _ in range(2):
            key_generators(1, 0, 5)
            draws.append(hook.rng.randint(1_000_000))
    assert draws[0] != draws[1]


# --- generators of the program's own -----------------------------------------------------------------------------------


def test_generators_of_the_programs_own_making_are_not_keyed() -> None:
    """They are parts of the state that the program has to give."""
    generator = torch.Generator().manual_seed(3)
    own: list[Callable[[], float]] = [
        random.Random(3).random,
        numpy.random.default_rng(3).random,
        lambda: torch.rand((), generator=generator).item(),
    ]
    for draw in own:
        key_generators(1, 0, 5)
        first = draw()
        key_generators(1, 0, 5)
        assert draw() != first
