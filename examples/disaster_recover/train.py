"""Handwritten digits on N workers, with disaster recovery. The same script is the scheduler where MS_ROLE=MS_SCHED.

bash run.sh                     # 8 workers and the scheduler, logs under device/
kill -9 <pid of a worker>       # whichever
bash recover.sh                 # starts again what died; the result is the same, bit for bit
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from pathlib import Path

import data
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import recovery
import recovery.torch as rt

EPOCHS = int(os.environ.get("EPOCHS", "10"))
# Slows the steps, so that there is time to kill something.
STEP_MS = int(os.environ.get("STEP_MS", "0"))
SAVE_STEPS = int(os.environ.get("SAVE_STEPS", "100"))

load_data = functools.lru_cache(data.load)


class Network(nn.Module):
    """One dense layer: 28 x 28 pixels to 10 digits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(28 * 28, 10)
        nn.init.normal_(self.fc.weight, std=0.01)
        nn.init.zeros_(self.fc.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(images.flatten(1)))


@recovery.run(warm_up=load_data)
def train(session: recovery.Session) -> None:
    torch.manual_seed(1)
    rt.init_process_group(session)
    net = DistributedDataParallel(Network())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    loss_fn = nn.CrossEntropyLoss()
    loader = rt.ResumableLoader(load_data(), batch_size=32, session=session)
    state = rt.TrainState(model=net, optimizer=optimizer, loader=loader)

    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=5)
    # A directory per rank.
    saver = recovery.ModelCheckpoint("train", f"./ckpt_of_rank/{session.rank}", config)
    callbacks = [recovery.LossMonitor(20), saver]

    for _, (images, labels) in session.steps(state, epochs=EPOCHS, callbacks=callbacks):
        optimizer.zero_grad()
        loss = loss_fn(net(images), labels)
        loss.backward()
        optimizer.step()
        session.report(loss=loss)
        time.sleep(STEP_MS / 1000)

    write_digest(net.module, session.rank)


def write_digest(net: nn.Module, rank: int) -> None:
    """Print the SHA-256 of the final weights and keep it in device/weights_<rank>.sha256."""
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    print(f"final weights of rank {rank}: sha256 {digest.hexdigest()}", flush=True)
    Path("device").mkdir(exist_ok=True)
    Path(f"device/weights_{rank}.sha256").write_text(digest.hexdigest() + "\n")


def test_train() -> None:
    """`pytest -s -v train.py` starts it too, as MindSpore's documents do."""
    train()


if __name__ == "__main__":
    train()
