"""What no `state_dict` has is given to another rank too, where training has changed it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recovery.training.live import StepPosition
from tests.torch.test_live_memory import Small, no_hook_is_left, world_of_one

__all__ = ["no_hook_is_left", "world_of_one"]


class Marked(Small):
    """With buffers that are not saved: one that training changes, one that each process has for itself, one that cannot be written into."""

    def __init__(self, own: float) -> None:
        super().__init__()
        self.net.register_buffer("centre", torch.zeros(2), persistent=False)
        self.net.register_buffer("own", torch.tensor(own), persistent=False)
        self.net.register_buffer("wide", torch.ones(1).expand(3))


@pytest.mark.usefixtures("world_of_one")
def test_what_no_state_dict_has_is_given_where_training_has_changed_it() -> None:
    old, new = Marked(1), Marked(2)
    memory = old.begun()
    old.step()
    old.net[0].weight.requires_grad_(False)
    old.net.centre = torch.arange(3)
    memory.boundary(1)
    old.backward()
    old.net[0].bias.requires_grad_(False)
    old.net.get_buffer("centre").zero_()

    shapes, why_not = memory.offer()
    assert why_not == ""
    assert all(parameter.requires_grad for parameter in old.net.parameters())
    memory.transfer(new.state, source=0, rank=0, shapes=shapes, at=StepPosition(1, 1, 1))

    assert [name for name, one in new.net.named_parameters() if not one.requires_grad] == ["0.weight"]
    assert new.net.get_buffer("centre").tolist() == [0, 1, 2]
    assert new.net.get_buffer("own").item() == 2
    assert new.net.get_buffer("wide").tolist() == [1, 1, 1]
    # What was given once is given again, though it does not change any more.
    again = Marked(3)
    shapes, _ = memory.offer()
    memory.transfer(again.state, source=0, rank=0, shapes=shapes, at=StepPosition(1, 1, 1))
    assert again.net.get_buffer("centre").tolist() == [0, 1, 2]
    memory.close()


def test_a_group_or_a_buffer_that_came_later_is_named() -> None:
    small = Small()
    memory = small.begun()
    memory.boundary(1)
    small.net.register_buffer("later", torch.zeros(1), persistent=False)
    assert memory.offer() == ("", "the buffers of its models are others than at the begin: model[0].later")

    second = nn.Linear(1, 1)
    small = Small(second=second)
    memory = small.begun()
    memory.boundary(1)
    small.optimizer.add_param_group({"params": list(second.parameters())})
    assert memory.offer()[1] == "the parameter groups of its optimizers are others than at the begin"
