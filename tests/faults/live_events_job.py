"""A training that notes every event of its steps, and ends itself by SIGKILL, or waits, at those that JOB_STRIKES names.

A note is one line of `trace_<node id>.jsonl`, written before the process goes on: what a killed process had noted is there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset
from typing_extensions import override

import recovery
import recovery.torch as rt
from recovery.core.messages import HeldCheckpoint
from recovery.torch import live_transfer
from recovery.torch.live_buffers import KeptBuffers
from recovery.torch.live_memory import LiveMemory
from recovery.torch.mirrored_buffers import Mirror, MirroredBuffers
from recovery.torch.spread import local as local_of
from recovery.training.live_rollback import LiveRollback
from recovery.worker.training_control import TrainingControl
from tests.cluster import checker
from tests.faults.live_strikes import HOLD, SAVE_STEPS, Strike, read_strikes, struck_in

EPOCHS, SAMPLES = 2, 66 * int(os.environ["MS_WORKER_NUM"])
KEEPS = os.environ.get("JOB_KEEP") == "1"
AVERAGES = os.environ.get("JOB_AVERAGES") == "1"
"""An average of the model, whose buffers go to all ranks behind the optimizers' steps."""
SPREAD = os.environ.get("JOB_MESH") == "hsdp"
"""The model is spread over half of the ranks, and held twice."""
PIECE_BYTES = 4096
HELD_S = 30.0
"""Nobody waits so long for the end of a generation."""


class Trace:
    """What this process has done, for whoever judges."""

    def __init__(self) -> None:
        self._file = os.open(
            f"trace_{os.environ['MS_NODE_ID']}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self._strikes = read_strikes(os.environ.get("JOB_STRIKES", "[]"))
        self.session: recovery.Session | None = None
        self._counts: Counter[str] = Counter()
        self._turns = 0

    def enter(self, session: recovery.Session) -> None:
        self.session = session
        self._counts.clear()
        self("entered", session.step)

    def begin_step(self) -> None:
        """What comes in turn begins again with 0."""
        self._turns = 0

    def in_turn(self, event: str) -> None:
        """One of several in this step."""
        self._turns += 1
        self(f"{event} {self._turns - 1}")

    def numbered(self, event: str) -> None:
        """One of several in this generation."""
        self._counts[event] += 1
        self(f"{event} {self._counts[event]}")

    def __call__(self, event: str, step: int | None = None) -> None:
        """Note it; the step is the one that is under way unless it is named."""
        session = self.session
        assert session is not None, "nothing happens outside of a generation"
        at = session.step + 1 if step is None else step
        line = {
            "rank": session.rank,
            "generation": session.generation,
            "pid": os.getpid(),
            "event": event,
            "step": at,
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")
        for number, strike in enumerate(self._strikes):
            if strike.is_at(session.rank, event, at):
                self._strike(number, strike, session)

    def _strike(self, number: int, strike: Strike, session: recovery.Session) -> None:
        before = struck_in(Path(), number - 1) if strike.follows else 0
        if before is None or before >= session.generation:
            return
        try:
            file = os.open(f"struck_{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.write(file, json.dumps([session.generation, os.getpid(), strike.what]).encode())
        os.close(file)
        if strike.behind:
            wait_for_others(session, strike.behind, strike.step)
        if strike.what == HOLD:
            deadline = time.monotonic() + HELD_S
            while time.monotonic() < deadline:
                session.check()
                time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_others(session: recovery.Session, event: str, step: int) -> None:
    """Until every other rank has noted an event of a step in this generation."""
    wanted = {(rank, session.generation, event, step) for rank in range(session.world_size)}
    wanted = {one for one in wanted if one[0] != session.rank}
    while wanted:
        session.check()
        noted = [line for path in Path().glob("trace_*.jsonl") for line in checker.lines(path)]
        wanted -= {(one["rank"], one["generation"], one["event"], one["step"]) for one in noted}
        time.sleep(0.01)


trace = Trace()


def note_around(owner: Any, name: str, event: str) -> None:
    """Have it noted when a function begins and when it has ended well."""
    inner: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(inner)
    def noted(*arguments: Any, **named: Any) -> Any:
        trace(f"{event} begins")
        result = inner(*arguments, **named)
        trace(f"{event} ends")
        return result

    setattr(owner, name, noted)


def note_saves() -> None:
    """In the main thread, and behind the steps where a checkpoint is complete on the disk."""
    save, published = recovery.ModelCheckpoint._save, recovery.Session.checkpoint_published

    def noted_save(saver: recovery.ModelCheckpoint, session: recovery.Session) -> None:
        trace("save begins", session.step)
        save(saver, session)
        trace("save ends", session.step)

    def noted_published(
        session: recovery.Session, checkpoint: HeldCheckpoint, replica: Mapping[str, str]
    ) -> None:
        trace("save is on disk", checkpoint.step)
        published(session, checkpoint, replica)

    setattr(recovery.ModelCheckpoint, "_save", noted_save)  # noqa: B010 - a method
    setattr(recovery.Session, "checkpoint_published", noted_published)  # noqa: B010 - a method


def note_pieces() -> None:
    """Each broadcast of a state that is given: its length, its header, its pieces."""
    live_transfer._PIECE_BYTES = PIECE_BYTES
    inner = live_transfer.Wire.broadcast

    def broadcast(wire: Any, tensor: torch.Tensor) -> torch.Tensor:
        trace.numbered("piece")
        return inner(wire, tensor)

    setattr(live_transfer.Wire, "broadcast", broadcast)  # noqa: B010 - a method


def note_layers() -> None:
    """In the backward pass of FSDP2: before the gradients of a layer are added over the ranks."""
    inner = FSDPParamGroup.post_backward

    def post_backward(group: Any, *unused: Any) -> None:
        trace.in_turn("bucket")
        inner(group, *unused)

    setattr(FSDPParamGroup, "post_backward", post_backward)  # noqa: B010 - a method


note_around(LiveMemory, "boundary", "boundary")
note_around(LiveMemory, "transfer", "transfer")
note_around(KeptBuffers, "before_boundary", "boundary's collectives")
note_around(MirroredBuffers, "_vote", "vote on buffers")
note_around(Mirror, "send", "mirror")
note_around(TrainingControl, "await_agreed", "agreement")
note_around(LiveRollback, "loaded", "load")
note_pieces()
note_saves()
note_layers()


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """Row i and its number."""

    def __init__(self) -> None:
        self._rows = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._rows[index] + 0.01 * torch.randn(16), index


def sum_bucket(group: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DistributedDataParallel's own sum, and a note before each bucket."""
    trace(f"bucket {bucket.index()}")
    total = bucket.buffer().div_(distributed.get_world_size())
    work = distributed.all_reduce(total, async_op=True)
    assert work is not None, "it was asked for"
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return summed


# DistributedDataParallel compares them with types, and not with their names.
sum_bucket.__annotations__.update({"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]})


def spread_net(world_size: int) -> nn.Sequential:
    """A model of FSDP2, each layer by itself, and a note before each layer's gradients are added."""
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    net = nn.Sequential(
        *(nn.Linear(16, 33), nn.LayerNorm(33), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(33, 31), nn.LayerNorm(31), nn.ReLU(), nn.Linear(31, 1)),
    )
    for layer in (net[0], net[4], net[7]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def make_net() -> nn.Sequential:
    """Two batch normalisations, so that there are buffers that training changes."""
    return nn.Sequential(
        *(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)),
    )


def in_buckets(net: nn.Module) -> nn.Module:
    """In DistributedDataParallel."""
    # It looks for unused parameters, for without that all are in one bucket until buckets are built again, which no world does.
    model = DistributedDataParallel(net, bucket_cap_mb=0.002, find_unused_parameters=True)
    model.register_comm_hook(None, sum_bucket)
    return model


@recovery.run
def train(session: recovery.Session) -> None:
    trace.enter(session)
    # What is spread over the ranks begins as each of them has made it; DistributedDataParallel gives all of them rank 0's.
    torch.manual_seed(0 if SPREAD else session.rank)
    rt.init_process_group(session)
    trace("world formed", session.step)
    model: nn.Module
    if SPREAD:
        net = model = spread_net(session.world_size)
    else:
        net = session.keep(make_net, "net") if KEEPS else make_net()
        model = in_buckets(net)
    averages = [AveragedModel(net, use_buffers=True)] if AVERAGES else []
    optimizers = [
        torch.optim.SGD(net[:4].parameters(), lr=0.01, momentum=0.9),
        torch.optim.Adam(net[4:].parameters(), lr=0.001),
    ]
    for number, optimizer in enumerate(optimizers):
        # Behind the engine's own, which is a hook of all optimizers: from here on this rank's weights change.
        optimizer.register_step_pre_hook(lambda *_, number=number: trace(f"optimizer {number} steps"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizers[0], step_size=7, gamma=0.9)
    loader = rt.ResumableLoader(Rows(), batch_size=2, session=session)
    state = rt.TrainState(
        model=model, optimizer=optimizers, lr_scheduler=schedule, loader=loader, averages=averages
    )
    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("train", f"ckpt/{session.rank}", config)
    with Path(f"samples_{session.rank}.jsonl").open("a") as log:
        for step, (rows, ids) in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
            line = {"generation": session.generation, "step": step, "ids": ids.tolist()}
            log.write(json.dumps(line) + "\n")
            log.flush()
            trace.begin_step()
            trace("forward begins")
            loss = model(rows).square().mean()
            trace("forward ends")
            trace("backward begins")
            loss.backward()
            trace("backward ends")
            for number, optimizer in enumerate(optimizers):
                trace(f"optimizer {number} begins")
                optimizer.step()
                trace(f"optimizer {number} ends")
            for average in averages:
                average.update_parameters(net)
            schedule.step()
            trace("schedule stepped")
            for optimizer in optimizers:
                optimizer.zero_grad()
            trace("step ends")
    content = [local_of(value) for part in (net, *averages) for _, value in sorted(part.state_dict().items())]
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in content))
    if session.rank and not SPREAD:
        # Batch statistics are every rank's own; those of rank 0 count.
        trained = [parameter.detach().numpy().tobytes() for parameter in net.parameters()]
        digest = hashlib.sha256(b"".join(trained))
    Path(f"digest_{session.rank}").write_text(digest.hexdigest())


if __name__ == "__main__":
    train()
