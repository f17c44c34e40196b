"""A training whose state is spread over the ranks: small, real, and configured by its environment.

Writes beside its logs what `job.py` writes; `digest_<rank>` is over the rank's own shards of weights and optimizer state.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import recovery
import recovery.torch as rt
from recovery.torch.shard_map import split, tensors_in
from tests.cluster.job import Samples

EPOCHS = int(os.environ.get("JOB_EPOCHS", "1"))
SAVE_STEPS = int(os.environ.get("JOB_SAVE_STEPS", "10"))
STEP_MS = int(os.environ.get("JOB_STEP_MS", "15"))
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
HELD_BEFORE = int(os.environ.get("JOB_HELD_BEFORE", "0"))
"""As in job.py."""
"""A step that is not counted before the file `go_on` is there."""
MESH = os.environ.get("JOB_MESH", "fsdp")
"""One of fsdp, hsdp, tensor: all ranks share a state; two replicas of it; two ranks share each layer, and two each part of a layer."""
NORM = os.environ.get("JOB_NORM", "batch")
"""batch: a model with statistics that every rank has for itself; layer: without."""
KEEPS = os.environ.get("JOB_KEEP") == "1"
"""The session is asked to keep the model from entry to entry, though it is spread over the ranks."""
FROM = os.environ.get("JOB_FROM", "")
"""A directory of another job's checkpoints, of any world size, to begin with."""


def build(mesh: DeviceMesh) -> nn.Module:
    """A model on the mesh that was asked for: its layers divide unevenly among the ranks."""
    torch.manual_seed(7)
    norm = nn.LayerNorm(30) if NORM == "layer" else nn.BatchNorm1d(30)
    net = nn.Sequential(nn.Linear(16, 30), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(30, 5))
    if MESH == "tensor":
        styles = {
            "0": ColwiseParallel(output_layouts=Replicate()),
            "4": RowwiseParallel(input_layouts=Replicate()),
        }
        parallelize_module(net, mesh["tensor"], styles)
        mesh = mesh["data"]
    for layer in (net[0], net[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def mesh_of(world_size: int) -> DeviceMesh:
    if MESH == "fsdp":
        return init_device_mesh("cpu", (world_size,))
    names = ("replicate", "shard") if MESH == "hsdp" else ("data", "tensor")
    return init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=names)


@recovery.run
def train(session: recovery.Session) -> None:
    rt.init_process_group(session)
    mesh = mesh_of(session.world_size)
    net = session.keep(lambda: build(mesh), "net") if KEEPS else build(mesh)
    pairs = mesh["tensor"].get_group() if MESH == "tensor" else None
    torch.manual_seed(session.rank)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9)
    loader = rt.ResumableLoader(Samples(1), batch_size=8, session=session, drop_last=True)
    state = rt.TrainState(model=net, optimizer=optimizer, lr_scheduler=schedule, loader=loader)
    if FROM and not session.step:
        place = state.read_sharded(Path(FROM))
        Path(f"began_with_{session.rank}").write_text(f"{place.step} of {place.world_size}")
        _write_whole(net, optimizer, session.rank, "begun")
    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("train", f"ckpt/{session.rank}", config)

    with Path(f"samples_{session.rank}.jsonl").open("a") as log:
        for step, (rows, ids) in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
            log.write(
                json.dumps({"generation": session.generation, "step": step, "ids": ids.tolist()}) + "\n"
            )
            log.flush()
            hold(session, step, HELD_BEFORE)
            if MESH == "tensor":
                # Two ranks compute one batch together.
                distributed.broadcast(rows, session.rank // 2 * 2, group=pairs)
            loss = net(rows).abs().mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            session.report(loss=loss)
            hold(session, step, HELD_STEP)
            time.sleep(STEP_MS / 1000)

    found = split({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
    sha256 = hashlib.sha256()
    for at, tensor in tensors_in(found):
        sha256.update(f"{at}".encode() + tensor.contiguous().numpy().tobytes())
    Path(f"digest_{session.rank}").write_text(sha256.hexdigest())
    _write_whole(net, optimizer, session.rank, "ended")


def hold(session: recovery.Session, step: int, at: int) -> None:
    """Wait for the test, if this is where it wants the job."""
    while step == at and not Path("go_on").exists():
        session.check()
        time.sleep(0.02)


def _write_whole(net: nn.Module, optimizer: torch.optim.Optimizer, rank: int, when: str) -> None:
    """The whole state in one file, gathered by torch itself: what another mesh must begin with."""
    whole = {
        f"{at}": tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for at, tensor in tensors_in(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()["state"]}
        )
    }
    if rank == 0:
        torch.save(whole, f"whole_{when}.pt")


if __name__ == "__main__":
    train()
