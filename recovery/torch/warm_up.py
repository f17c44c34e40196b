"""What a fresh process pays before its first step, paid while it waits to be let in.

Measured with torch 2.13 on two cores: the first optimizer imports torch._dynamo, half of the 1.6 s from start to first step. A third
of its 0.8 s is the garbage collector, which looks again and again at modules that stay.
"""

from __future__ import annotations

import gc

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.world_of_one import world_of_one


def warm_up() -> None:
    """Do one training step of one number, in a world of one where there is none yet. No generator moves."""
    state = capture_random_state()
    model = torch.nn.Linear(1, 1)
    optimizer = _first_optimizer(model)
    # Modules stay: the collections below and between generations look only at what came after.
    gc.freeze()
    if distributed.is_available() and not distributed.is_initialized():
        with world_of_one():
            _step(DistributedDataParallel(model), optimizer)
    else:
        _step(model, optimizer)
    restore_random_state(state)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.functional.mse_loss(model(torch.zeros(1, 1)), torch.zeros(1, 1)).backward()  # type: ignore[no-untyped-call]  # torch ships it without types
    optimizer.step()


def _first_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Make it, with the collector paused while it imports."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return torch.optim.SGD(model.parameters(), lr=0.0)
    finally:
        if was_enabled:
            gc.enable()
