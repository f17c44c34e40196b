"""A world of this process alone, for what a program does before it is let into the job's."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from torch import distributed
from torch._C._distributed_c10d import HashStore

from recovery.errors import UsageError
from recovery.torch.ended_groups import wait_until_idle
from recovery.torch.process_group import change_torch
from recovery.torch.random_state import capture_random_state, restore_random_state
from recovery.torch.sockets import ask_again_soon
from recovery.training.exception_hook import exception_hook_kept


@contextlib.contextmanager
def world_of_one(backend: str = "gloo") -> Iterator[None]:
    """Inside it `torch.distributed` has one rank, this process. Random generators are behind it as they were before.

    It is for a `warm_up` of `recovery.run`: what is compiled in a pass there, around DistributedDataParallel or inside it, is there at the first step
    that the process does in the job, where the model, its shapes and settings are the same. Nothing else that is made in it can be used behind it.

    Args:
        backend: as for `init_process_group`.

    Raises:
        UsageError: there is a world already.
    """
    if distributed.is_initialized():
        raise UsageError(
            field="world_of_one",
            reason="torch.distributed is initialised already",
            next_step="Use it before the process is in a world: in recovery.run(warm_up=...).",
        )
    ask_again_soon()
    # What is compiled around a wrapper sees what is changed of it.
    change_torch()
    state = capture_random_state()
    with exception_hook_kept():
        distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        # A reducer should go before its group; one that outlives it finds no thread of the group at work (ended_groups.py, fact 1).
        gc.collect()
        wait_until_idle(looks=1)
        distributed.destroy_process_group()
        restore_random_state(state)
