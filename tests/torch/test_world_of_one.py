"""A world of one process: what is done in it moves no generator, and it is gone behind it."""

from __future__ import annotations

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import recovery.torch as rt
from recovery.errors import UsageError


def test_it_is_gone_behind_it_with_what_it_drew() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)

    torch.manual_seed(7)
    with rt.world_of_one():
        assert distributed.get_world_size() == 1
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.randn(4, 2)).sum().backward()

    assert not distributed.is_initialized()
    assert torch.equal(torch.rand(3), expected)


def test_what_fails_in_it_leaves_no_world_behind() -> None:
    with pytest.raises(RuntimeError, match="shapes"), rt.world_of_one():
        torch.nn.Linear(2, 2)(torch.zeros(1, 3))

    assert not distributed.is_initialized()


def test_it_is_refused_in_a_world() -> None:
    with (
        rt.world_of_one(),
        pytest.raises(UsageError, match="initialised already"),
        rt.world_of_one(),
    ):
        pass
