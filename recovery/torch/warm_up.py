"""What a fresh process pays before its first step, paid while it waits to be let in.

Measured with torch 2.13 on two cores: the first optimizer imports torch._dynamo, half of the 1.6 s from start to first step. A third
of its 0.8 s is the garbage collector, which looks again and again at modules that stay.
"""

from __future__ import annotations

import gc

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.sockets import ask_again_soon
from recovery.training.exception_hook import exception_hook_kept


def warm_up() -> None:
    """Do one training step of one number, in a world of one where there is none yet. No generator moves."""
    ask_again_soon()
    state = capture_random_state()
    model = torch.nn.Linear(1, 1)
    optimizer = _first_optimizer(model)
    # Modules stay: the collections below and between generations look only at what came after.
    gc.freeze()
    alone = distributed.is_available() and not distributed.is_initialized()
    if alone:
        with exception_hook_kept():
            distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    wrapped = DistributedDataParallel(model) if alone else model
    torch.nn.functional.mse_loss(wrapped(torch.zeros(1, 1)), torch.zeros(1, 1)).backward()  # type: ignore[no-untyped-call]  # torch ships it without types
    optimizer.step()
    del wrapped
    if alone:
        # The reducer must go before its group, see ended_groups.py.
        gc.collect()
        distributed.destroy_process_group()
    restore_random_state(state)


def _first_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Make it, with the collector paused while it imports."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return torch.optim.SGD(model.parameters(), lr=0.0)
    finally:
        if was_enabled:
            gc.enable()
