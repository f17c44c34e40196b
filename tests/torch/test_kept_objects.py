"""DistributedDataParallel and what is compiled, from one world to the next, as `session.keep` has them taken there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch.compiled_code import compiled_code
from recovery.torch.kept_objects import kept_objects
from recovery.training.exception_hook import exception_hook_kept


def begin_world() -> None:
    with exception_hook_kept():
        distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def next_world(kept: object) -> None:
    """One generation ends, and an object is asked for in the next."""
    assert kept_objects.leave_world({"kept": kept}) == ""
    compiled_code.end_generation()
    distributed.destroy_process_group()
    begin_world()
    kept_objects.enter_world(kept)


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    begin_world()
    yield
    kept_objects.leave_world({})
    compiled_code.end_generation()
    # A reducer goes before its group.
    gc.collect()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def gradients_of(net: nn.Module) -> list[torch.Tensor]:
    net.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    found = [parameter.grad for parameter in net.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient.clone() for gradient in found if gradient is not None]


def test_a_wrapper_whose_backward_pass_was_broken_off_is_used_in_the_next_world() -> None:
    wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
    expected = gradients_of(wrapped)

    def breaks(gradient: torch.Tensor) -> None:
        raise RuntimeError

    hook = wrapped.module[0].weight.register_hook(breaks)
    with pytest.raises(RuntimeError):
        gradients_of(wrapped)
    hook.remove()
    next_world({"all": [wrapped]})

    assert wrapped.process_group is distributed.group.WORLD
    assert all(map(torch.equal, gradients_of(wrapped), expected))


def test_between_two_worlds_a_wrapper_has_the_group_of_neither() -> None:
    """Else it would be the last to hold one, and wait for it with the GIL."""
    wrapped = DistributedDataParallel(nn.Linear(4, 1))
    gone = distributed.group.WORLD
    assert kept_objects.leave_world({"net": wrapped}) == ""
    assert wrapped.process_group is not gone
    # The generation in between did not ask for it.
    assert kept_objects.leave_world({"net": wrapped}) == ""

    kept_objects.enter_world(wrapped)
    assert wrapped.process_group is gone


def test_a_pass_that_was_broken_off_in_no_sync_leaves_no_trace() -> None:
    """A new rank's first pass begins with rank 0's buffers, and would wait for them."""
    wrapped: Any = DistributedDataParallel(nn.Linear(4, 1))
    with wrapped.no_sync():
        wrapped(torch.ones(2, 4))
    assert not wrapped.require_forward_param_sync
    next_world(wrapped)

    assert wrapped.require_forward_param_sync


def own_group() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(4, 1), process_group=distributed.new_group())


def static_graph() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(4, 1), static_graph=True)


def with_hook() -> DistributedDataParallel:
    wrapped = DistributedDataParallel(nn.Linear(4, 1))
    wrapped.register_comm_hook(None, fp16_compress_hook)
    return wrapped


@pytest.mark.parametrize(
    ("make", "why"),
    [(own_group, "a group of its own"), (static_graph, "static_graph"), (with_hook, "a communication hook")],
)
def test_what_cannot_be_used_in_another_world_is_named(
    make: Callable[[], DistributedDataParallel], why: str
) -> None:
    beside = DistributedDataParallel(nn.Linear(4, 1))

    reason = kept_objects.leave_world({"beside": beside, "net": nn.Sequential(make())})

    assert why in reason
    assert beside.process_group is distributed.group.WORLD, "all are let go, as they were"


def test_a_wrapper_is_not_asked_for_before_there_is_a_world() -> None:
    wrapped = DistributedDataParallel(nn.Linear(4, 1))
    kept_objects.leave_world({"net": wrapped})
    distributed.destroy_process_group()
    kept_objects.enter_world(nn.Linear(4, 1))

    with pytest.raises(UsageError, match="init_process_group"):
        kept_objects.enter_world(wrapped)


class Compiler:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.count += 1
        return graph


def test_what_is_kept_is_compiled_once() -> None:
    torch._dynamo.reset()
    compiler = Compiler()
    net = DistributedDataParallel(torch.compile(nn.Linear(4, 1), backend=compiler))
    gradients_of(net)
    for _ in range(3):
        next_world(net)
        gradients_of(net)
    assert compiler.count == 1

    kept_objects.let_go()
    gradients_of(net)
    assert compiler.count == 2, "with a new rank's bits"


def test_what_is_built_anew_beside_it_never_meets_the_limit() -> None:
    """Beyond it the code would be run as it is written."""
    torch._dynamo.reset()
    kept, beside = Compiler(), Compiler()
    limit = torch._dynamo.config.recompile_limit
    net = torch.compile(nn.Linear(4, 1), backend=kept)
    compiled = []
    for scale in range(3 * limit):
        # Each is another piece of a kind, as one that was built anew may be.
        scaled = torch.compile(Scaled(scale), backend=beside)
        net(torch.ones(1, 4))
        scaled(torch.ones(1))
        compiled.append(beside.count)
        next_world({"net": net})

    assert compiled == [*range(1, 3 * limit + 1)]
    assert kept.count < 4
    kept_objects.let_go()
    assert torch._dynamo.config.recompile_limit == limit


class Scaled(nn.Module):
    """What it is compiled for is its number."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.by
