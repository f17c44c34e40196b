"""The training of the comparison under torchft: one replica group a rank, gloo; a process that is new takes its state from a living one.

Gradients are averaged by its manager without its DistributedDataParallel: that of version 0.2.0 ends the survivors of a failed
collective by an assertion. Started once per rank, with RANK, WORLD_SIZE, TORCHFT_LIGHTHOUSE and GROUP_TIMEOUT (seconds after which a
collective is given up); whoever starts it again is its launcher.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torchft
from program_common import BATCH_SIZE, EPOCHS, digits, one_step
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.utils.data import DataLoader, DistributedSampler
from work_log import mark, stepped

ALL_WAIT = timedelta(seconds=60)


def train() -> None:
    """One process's life."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = nn.Linear(784, 10)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-2)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=float(os.environ["GROUP_TIMEOUT"]))),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
        min_replica_size=1,
        timeout=ALL_WAIT,
        quorum_timeout=ALL_WAIT,
        rank=0,
        world_size=1,
        replica_id=f"rank_{rank}",
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    optimizer = torchft.Optimizer(manager, sgd)

    def reduce() -> None:
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()

    data = digits()
    sampler: DistributedSampler[Any] = DistributedSampler(data, world_size, rank)
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)
    mark("loaded", rank)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            before = manager.current_step()
            one_step(model, optimizer, batch, reduce)
            # A step that was not committed is done again by torchft with the next batch.
            if manager.current_step() > before and manager.num_participants() == world_size:
                stepped(rank, manager.current_step())


if __name__ == "__main__":
    torch.set_num_threads(1)
    mark("entered")
    train()
