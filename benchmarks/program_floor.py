"""The floors of the comparison: what one process alone needs to its first step, with the imports of the engine's program.

`fresh`: this program, from nothing. `fork N`: it makes the imports once, then forks N times, one after the other.
Each tells its first step in steps.jsonl; a fork tells `begun_ms`, too, since when it counts.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from pathlib import Path

import torch
from program_common import BATCH_SIZE, digits, one_step
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from work_log import note

SNAPSHOT = Path("floor.pt")
# What a worker of the engine has loaded by its first step, beside torch: its own modules are imported when they are first used.
IMPORTED_LATER = (
    "recovery.torch",
    "recovery.training.run",
    "recovery.worker.executor",
    "recovery.worker.local_store",
    "recovery.transport.client",
    "torch._dynamo",
)


def first_step(**fields: float) -> None:
    """A world of one, the state from a file, one step; ends the process."""
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    model = nn.Linear(784, 10)
    if SNAPSHOT.exists():
        model.load_state_dict(torch.load(SNAPSHOT, weights_only=True))
    else:
        torch.save(model.state_dict(), SNAPSHOT)
    net = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    one_step(net, optimizer, next(iter(DataLoader(digits(), batch_size=BATCH_SIZE))))
    note(rank=0, step=1, **fields)
    os._exit(0)


def main() -> None:
    """The command above."""
    torch.set_num_threads(1)
    for name in IMPORTED_LATER:
        import_module(name)
    if sys.argv[1] == "fresh":
        first_step()
    for _ in range(int(sys.argv[2])):
        begun_ms = time.time() * 1000
        child = os.fork()
        if child == 0:
            first_step(begun_ms=begun_ms)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
