"""A net with dropout, trained on the GPU where there is one: ranks that share it over NCCL say that they are of different hosts."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from typing_extensions import override

import recovery
import recovery.torch as rt

BACKEND = os.environ.get("JOB_BACKEND", "gloo")
STEP_MS = int(os.environ.get("JOB_STEP_MS", "25"))
READS = os.environ.get("JOB_READS", "1") == "1"
"""The loop reads its loss from the device between the backward pass and the optimizer's step."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 4))

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(rows)
        return out


def _data() -> TensorDataset:
    rows = torch.randn(400, 32, generator=torch.Generator().manual_seed(5))
    return TensorDataset(rows, (rows.sum(1) > 0).long())


@recovery.run
def train(session: recovery.Session) -> None:
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(1)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if BACKEND == "nccl":
        torch.cuda.set_device(device)
        os.environ |= {"NCCL_HOSTID": f"host{session.rank}", "NCCL_SOCKET_IFNAME": "lo"}
    rt.init_process_group(session, BACKEND)
    net = Net().to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    loader = rt.ResumableLoader(_data(), batch_size=4, session=session, shuffle=True, seed=3)
    state = rt.TrainState(model=model, optimizer=optimizer, loader=loader)
    saver = recovery.ModelCheckpoint(
        "train",
        f"ckpt_{session.rank}",
        recovery.CheckpointConfig(save_checkpoint_steps=10, keep_checkpoint_max=3),
    )
    for step, (rows, labels) in session.steps(state, epochs=2, callbacks=[saver]):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows.to(device)), labels.to(device))
        loss.backward()  # type: ignore[no-untyped-call]  # torch ships it without types
        if READS:
            loss.item()
        optimizer.step()
        with Path(f"steps_{session.rank}.jsonl").open("a") as log:
            log.write(json.dumps({"step": step, "generation": session.generation, "pid": os.getpid()}) + "\n")
        time.sleep(STEP_MS / 1000)
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    Path(f"digest_{session.rank}").write_text(digest.hexdigest())


if __name__ == "__main__":
    train()
