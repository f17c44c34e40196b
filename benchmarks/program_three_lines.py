"""The training of the comparison as a script with three lines of ours. Started by `recovery msrun`, which runs it again behind each death."""

from __future__ import annotations

from pathlib import Path

import torch
from program_common import BATCH_SIZE, EPOCHS, SAVE_STEPS, digits, one_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from work_log import mark, stepped

import recovery.torch as rt


def train() -> None:
    """One entry."""
    session = rt.join()
    mark("world", session.rank)
    net = DistributedDataParallel(nn.Linear(784, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    loader = DataLoader(digits(), batch_size=BATCH_SIZE, shuffle=True)
    loaded = False
    for batch in rt.steps(
        loader, net, optimizer, epochs=EPOCHS, save_every=SAVE_STEPS, directory=Path("ckpt")
    ):
        if not loaded:
            mark("loaded", session.rank)
            loaded = True
        one_step(net, optimizer, batch)
        stepped(session.rank, session.step + 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    mark("entered")
    train()
