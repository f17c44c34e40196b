"""What the pods of the tests train: DistributedDataParallel on random numbers, held at given steps until a file says go on."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import recovery
import recovery.torch as rt

CHECKPOINTS, HELD = Path(sys.argv[1]), [int(step) for step in sys.argv[2:]]


@recovery.run
def train(session: recovery.Session) -> None:
    torch.manual_seed(1)
    rt.init_process_group(session)
    net = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    numbers = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(640, 16, generator=numbers), torch.randn(640, 4, generator=numbers))
    loader = rt.ResumableLoader(data, batch_size=8, session=session)
    state = rt.TrainState(model=net, optimizer=optimizer, loader=loader)
    config = recovery.CheckpointConfig(save_checkpoint_steps=10, keep_checkpoint_max=5)
    saver = recovery.ModelCheckpoint("train", str(CHECKPOINTS / str(session.rank)), config)
    for step, (inputs, targets) in session.steps(state, epochs=4, callbacks=[saver]):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships it without types
        optimizer.step()
        session.report(loss=loss.detach())
        if step in HELD and session.rank == 0:
            print(f"held at {step}", flush=True)
            while not (CHECKPOINTS / f"go-{step}").exists():
                time.sleep(0.05)
    digest = hashlib.sha256()
    for name, value in sorted(net.module.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    print(f"final weights {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    train()
