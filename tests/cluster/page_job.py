"""The `train.py` of the pages about engines: a script of three lines, with their arguments. It waits beside a file `held` at a step of its own."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import recovery.torch as rt

HELD, HELD_STEP = Path("held"), 120


def main() -> None:
    """Train, and leave the weights of rank 0 as `model.pt`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    session = rt.join("gloo")
    torch.manual_seed(0)
    rows = torch.randn(1024 * session.world_size, 8)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=parser.parse_args().lr)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    for batch, targets in rt.steps(loader, model, optimizer, epochs=5):
        while session.step >= HELD_STEP and HELD.exists():
            session.check()
            time.sleep(0.05)
        nn.functional.mse_loss(model(batch), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    if session.rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
