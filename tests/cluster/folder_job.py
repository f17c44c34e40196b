"""A sharded training that torch.distributed.checkpoint saves, all ranks into one folder: small, real, configured by its environment."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import recovery
import recovery.torch as rt
from recovery.torch.shard_map import split, tensors_in
from tests.cluster.job import Samples

EPOCHS = int(os.environ.get("JOB_EPOCHS", "1"))
STEP_MS = int(os.environ.get("JOB_STEP_MS", "15"))
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A step that is not counted before the file `go_on` is there."""


class Training:
    """All that decides the next step, as DCP saves and loads it."""

    def __init__(self, session: recovery.Session) -> None:
        torch.manual_seed(7)
        self.rank = session.rank
        self.net = nn.Sequential(nn.Linear(16, 30), nn.ReLU(), nn.Linear(30, 5))
        fully_shard(self.net, mesh=init_device_mesh("cpu", (session.world_size,)))
        torch.manual_seed(session.rank)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.loader = rt.ResumableLoader(Samples(1), batch_size=8, session=session, drop_last=True)
        self.state = rt.TrainState(model=self.net, optimizer=self.optimizer, loader=self.loader)

    def taken(self) -> dict[str, Any]:
        """What is one rank's alone has its number in its name."""
        model, optimizer = get_state_dict(self.net, self.optimizer)
        own = {"loader": self.loader.state_dict(), "random": torch.get_rng_state()}
        return {"model": model, "optimizer": optimizer, f"rank{self.rank}": own}

    def save(self, folder: Path) -> None:
        save(self.taken(), checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        found = self.taken()
        load(found, checkpoint_id=folder)
        set_state_dict(
            self.net, self.optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
        )
        own = found[f"rank{self.rank}"]
        self.loader.load_state_dict(own["loader"])
        # It draws, so the generator comes last.
        self.loader.prime()
        torch.set_rng_state(own["random"])


@recovery.run
def train(session: recovery.Session) -> None:
    rt.init_process_group(session)
    training = Training(session)
    folder = session.resume_from
    if folder is not None:
        training.load(folder)
    adopter = rt.AdoptFolders("ckpt", "step_{step}", keep=2)

    with Path(f"samples_{session.rank}.jsonl").open("a") as log:
        for step, (rows, ids) in session.steps(training.state, epochs=EPOCHS, callbacks=[adopter]):
            log.write(
                json.dumps({"generation": session.generation, "step": step, "ids": ids.tolist()}) + "\n"
            )
            log.flush()
            loss = training.net(rows).abs().mean()
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            session.report(loss=loss)
            if step % 10 == 0:
                training.save(Path("ckpt") / f"step_{step}")
            while step == HELD_STEP and not Path("go_on").exists():
                session.check()
                time.sleep(0.02)
            time.sleep(STEP_MS / 1000)

    sha256 = hashlib.sha256()
    found = split({"model": training.net.state_dict(), "optimizer": training.optimizer.state_dict()})
    for at, tensor in tensors_in(found):
        sha256.update(f"{at}".encode() + tensor.contiguous().numpy().tobytes())
    Path(f"digest_{session.rank}").write_text(sha256.hexdigest())


if __name__ == "__main__":
    train()
