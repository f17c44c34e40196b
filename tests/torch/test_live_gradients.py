"""Gradients at a step's end are held where each step makes new ones, and copied where they are changed in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from recovery.torch.live_gradients import KeptGradients

STEPS = 12
Clear = Callable[[torch.nn.Module], None]


def set_to_none(net: torch.nn.Module) -> None:
    net.zero_grad(set_to_none=True)


def set_to_zero(net: torch.nn.Module) -> None:
    net.zero_grad(set_to_none=False)


def set_data_to_zero(net: torch.nn.Module) -> None:
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


def leave(net: torch.nn.Module) -> None:
    """They add up."""


def gradients(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.grad for name, one in net.named_parameters() if one.grad is not None}


def is_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def backward(net: torch.nn.Module) -> None:
    net(torch.randn(2, 3)).square().sum().backward()


@pytest.mark.parametrize("clear", [set_to_none, set_to_zero, set_data_to_zero, leave])
def test_they_are_what_they_were_at_the_boundary_at_every_moment_of_the_next_step(clear: Clear) -> None:
    torch.manual_seed(1)
    net, kept = torch.nn.Linear(3, 2), KeptGradients()
    for _ in range(STEPS):
        at_boundary = {name: one.clone() for name, one in gradients(net).items()}
        kept.boundary(gradients(net))
        assert is_same(kept.tensors(), at_boundary)
        clear(net)
        assert kept.why_not() == ""
        assert is_same(kept.tensors(), at_boundary)
        backward(net)
        assert kept.why_not() == ""
        assert is_same(kept.tensors(), at_boundary)


@pytest.mark.parametrize(("clear", "is_held"), [(set_to_none, True), (set_to_zero, False), (leave, False)])
def test_they_are_not_copied_where_every_step_makes_new_ones(clear: Clear, is_held: bool) -> None:
    net, kept = torch.nn.Linear(3, 2), KeptGradients()
    for _ in range(STEPS):
        clear(net)
        backward(net)
        kept.boundary(gradients(net))

    assert all(kept.tensors()[name] is gradient for name, gradient in gradients(net).items()) is is_held


def after_held_steps(net: torch.nn.Module) -> KeptGradients:
    kept = KeptGradients()
    for _ in range(STEPS):
        set_to_none(net)
        backward(net)
        kept.boundary(gradients(net))
    return kept


def test_what_is_changed_in_place_later_is_said_and_copied_from_then_on() -> None:
    net = torch.nn.Linear(3, 2)
    kept = after_held_steps(net)

    backward(net)
    assert "changed in place" in kept.why_not()

    kept.boundary(gradients(net))
    at_boundary = {name: one.clone() for name, one in gradients(net).items()}
    backward(net)
    assert kept.why_not() == ""
    assert is_same(kept.tensors(), at_boundary)


def test_what_lies_in_the_same_bucket_at_every_step_is_copied() -> None:
    net, kept = torch.nn.Linear(3, 2), KeptGradients()
    bucket = torch.zeros(6)
    for step in range(STEPS):
        # As a reducer does it: every step has a tensor of its own there, and nobody counts what is written.
        set_to_none(net)
        bucket.data.fill_(step)
        net.weight.grad = bucket.detach().view(2, 3)
        kept.boundary(gradients(net))

    bucket.data.fill_(99)

    assert kept.why_not() == ""
    assert is_same(kept.tensors(), {"weight": torch.full((2, 3), STEPS - 1.0)})


def test_without_gradients_nothing_is_kept() -> None:
    kept = KeptGradients()
    kept.boundary({})
    assert kept.tensors() == {}
    assert kept.why_not() == ""
