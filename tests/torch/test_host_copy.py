"""A copy in the host's memory is what a copy beside the state would be. Tensors of the host stand in for those of a device."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from recovery.torch.host_copy import copied_to_host


def brought(tree: Any) -> Any:
    """As if all of it lay on a device."""
    return copied_to_host(tree, lies_elsewhere=lambda _: True)


def test_tensors_are_brought_with_their_shape_strides_and_bits() -> None:
    base = torch.arange(24, dtype=torch.bfloat16)
    tree: dict[str, Any] = {
        "whole": base.reshape(4, 6),
        "turned": base.reshape(4, 6).t(),
        "part": [base[3:9:2]],
        "one": (torch.tensor(7),),
        "none": torch.empty(0),
    }
    found = brought(tree)
    for ours, its in zip(
        (found["whole"], found["turned"], found["part"][0], found["one"][0], found["none"]),
        (tree["whole"], tree["turned"], tree["part"][0], tree["one"][0], tree["none"]),
        strict=True,
    ):
        assert (ours.dtype, ours.shape, ours.stride()) == (its.dtype, its.shape, its.stride())
        assert torch.equal(ours, its)
    assert found["part"][0].untyped_storage().data_ptr() == found["whole"].untyped_storage().data_ptr()
    base.zero_()
    assert found["whole"][0, 1] == 1, "it shares nothing with the state"


def test_a_models_and_an_optimizers_state_make_the_same_file() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    net.append(net[0])
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    plain, copied = io.BytesIO(), io.BytesIO()
    torch.save(state, plain)
    torch.save(brought(state), copied)
    assert copied.getvalue() == plain.getvalue()


@pytest.mark.parametrize(
    "tensor",
    [
        nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True),
        torch.ones(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
    ],
    ids=["a parameter", "one with a gradient", "a sparse one", "a conjugate"],
)
def test_a_tensor_of_another_kind_is_copied_as_it_is(tensor: torch.Tensor) -> None:
    found = brought(OrderedDict(only=tensor))["only"]
    assert type(found) is type(tensor)
    assert found is not tensor
    assert (found.layout, found.requires_grad) == (tensor.layout, tensor.requires_grad)
    assert torch.equal(found.to_dense(), tensor.to_dense())


def test_what_lies_on_the_host_is_copied_where_it_is() -> None:
    tensor = torch.ones(2)
    state: dict[str, Any] = {"a": tensor, "b": [tensor]}
    found = copied_to_host(state)
    assert found["a"] is found["b"][0]
    assert found["a"].data_ptr() != tensor.data_ptr()
