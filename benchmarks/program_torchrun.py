"""The training of the comparison as torchrun's users write it: rank 0 saves a snapshot, all load it when they are started again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from program_common import BATCH_SIZE, EPOCHS, SAVE_STEPS, digits, one_step
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from work_log import mark, stepped

SNAPSHOT = Path("snapshot.pt")


def train() -> None:
    """One process's life."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo")
    mark("world", rank)
    model = nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    step = 0
    if SNAPSHOT.exists():
        saved = torch.load(SNAPSHOT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    net = DistributedDataParallel(model)
    data = digits()
    sampler: DistributedSampler[Any] = DistributedSampler(data, world_size, rank)
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)
    loaded = False
    for epoch in range(step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            if not loaded:
                mark("loaded", rank)
                loaded = True
            one_step(net, optimizer, batch)
            step += 1
            stepped(rank, step)
            if rank == 0 and step % SAVE_STEPS == 0:
                draft = SNAPSHOT.with_suffix(".draft")
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, draft
                )
                draft.replace(SNAPSHOT)


if __name__ == "__main__":
    torch.set_num_threads(1)
    mark("entered")
    train()
