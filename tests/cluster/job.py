"""The training that the cluster tests run: small, real, and configured by its environment.

Writes beside its logs, per rank: `samples_<rank>.jsonl` (the sample ids of every step it began, with generation) and
`digest_<rank>` (SHA-256 of the final weights).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from typing_extensions import override

import recovery
import recovery.torch as rt
from recovery.core.worker import barrier
from recovery.torch.file_layout import FileLayout
from recovery.torch.shared_state import SharedPieces
from recovery.training import shared_directory_probe
from tests.cluster.stateful_loaders import LOADERS

EPOCHS = int(os.environ.get("JOB_EPOCHS", "4"))
# 4 ranks x 153, batches of 8: the last one is ragged.
SAMPLES = int(os.environ.get("JOB_SAMPLES", "611"))
SAVE_STEPS = int(os.environ.get("JOB_SAVE_STEPS", "10"))
ASYNC = os.environ.get("JOB_ASYNC") == "1"
"""Checkpoints are written behind the steps."""
STEP_MS = int(os.environ.get("JOB_STEP_MS", "15"))
NUM_WORKERS = int(os.environ.get("JOB_NUM_WORKERS", "0"))
# One of map, iterable, two, or a loader with a position of its own (stateful_loaders.py).
DATA = os.environ.get("JOB_DATA", "map")
HELD_SAVE = int(os.environ.get("JOB_HELD_SAVE", "0"))
"""Which save of a process goes no further, counted from 1."""
_saves = itertools.count(1)
LOAD_DELAY_MS = int(os.environ.get("JOB_LOAD_DELAY_MS", "0"))
LAYOUT = os.environ.get("JOB_LAYOUT", "rank")
"""Of the checkpoints: one directory for each rank, or one for all; apart: one for each rank where there should be one for all."""
OWN = os.environ.get("JOB_OWN", "")
"""drifts: a part differs between ranks; per_rank: it does, and the state is told so."""
barrier.ANSWER_MS = int(os.environ.get("JOB_ANSWER_MS", barrier.ANSWER_MS))
"""How long a worker that is asked to end waits for the scheduler's answer: no setting, and too short for a scheduler on a busy machine."""
OPEN_FILES = int(os.environ.get("JOB_OPEN_FILES", "0"))
"""How many the process holds open beside its own, as data loaders over many shards do."""
KEEPS = os.environ.get("JOB_KEEP") == "1"
"""The model is kept from entry to entry, where training goes on from memory."""
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A step that is not counted before the file `go_on` is there: what a test does to the job is done by then. -1: the evaluation behind the loop."""

HELD_BEFORE = int(os.environ.get("JOB_HELD_BEFORE", "0"))
"""A step whose batch is there and which has changed nothing yet, held likewise: the state of the step before is whole."""


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Row i and its number, with noise that a rollback must bring back as well."""

    def __init__(self, seed: int) -> None:
        self._rows = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return SAMPLES

    def row(self, index: int) -> torch.Tensor:
        """Without the noise."""
        return self._rows[index]

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._rows[index] + 0.01 * torch.randn(16), index


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """The same rows as a stream without length, shared among ranks and loader processes by hand."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._rows = Samples(1)

    @override
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        info = get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        each = SAMPLES // self._world_size
        order = torch.randperm(each).tolist() if not info else list(range(each))
        for position in order[part::parts]:
            yield self._rows[position * self._world_size + self._rank]


def _hold_save() -> None:
    if next(_saves) == HELD_SAVE:
        Path(f"saving_{os.environ['MS_NODE_ID']}").touch()
        threading.Event().wait()


class SlowState(rt.TrainState):
    """A state whose saving can be held and whose loading can be made slow, so that a test can kill in the middle of it."""

    @override
    def lay_out(self) -> FileLayout:
        file = super().lay_out()
        _hold_save()
        return file

    @override
    def take_shared(self, *, rank: int, world_size: int) -> SharedPieces:
        pieces = super().take_shared(rank=rank, world_size=world_size)
        _hold_save()
        return pieces

    @override
    def read(self, path: Path) -> None:
        if LOAD_DELAY_MS:
            Path(f"loading_{os.environ['MS_NODE_ID']}").touch()
            time.sleep(LOAD_DELAY_MS / 1000)
        super().read(path)


@recovery.run
def train(session: recovery.Session) -> None:
    torch.manual_seed(session.rank)
    rt.init_process_group(session)

    def make() -> nn.Sequential:
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    net = session.keep(make, "net") if KEEPS else make()
    model = DistributedDataParallel(net)
    head, body = list(net[3].parameters()), list(net[0].parameters())
    optimizers = [torch.optim.SGD(body, lr=0.01, momentum=0.9), torch.optim.Adam(head, lr=0.001)]
    schedules = [
        torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.9) for optimizer in optimizers
    ]
    data = Stream(session.rank, session.world_size) if DATA == "iterable" else Samples(1)
    loader: Any = rt.ResumableLoader(data, batch_size=8, session=session, num_workers=NUM_WORKERS)
    if DATA in LOADERS:
        loader = LOADERS[DATA](data, session, NUM_WORKERS)
    second = rt.ResumableLoader(Samples(2), batch_size=4, session=session, seed=9, num_workers=NUM_WORKERS)
    more: dict[str, Any] = {"second": second} if DATA == "two" else {}
    if OWN:
        more["own"] = nn.Linear(4, 4)
        nn.init.constant_(more["own"].weight, session.rank)
    if OWN == "per_rank":
        more["per_rank"] = ["own"]
    state = SlowState(model=model, optimizer=optimizers, lr_scheduler=schedules, loader=loader, **more)
    config = recovery.CheckpointConfig(
        save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3, async_save=ASYNC
    )
    layout = "rank" if LAYOUT == "rank" else "shared"
    directory = "ckpt/shared" if LAYOUT == "shared" else f"ckpt/{session.rank}"
    saver = recovery.ModelCheckpoint("train", directory, config, layout=layout)
    if LAYOUT == "apart":
        shared_directory_probe.PATIENCE_MS = 500
    others = iter(second)

    with Path(f"samples_{session.rank}.jsonl").open("a") as log:
        for step, (main, ids) in session.steps(
            state, epochs=EPOCHS, callbacks=[recovery.LossMonitor(20), saver]
        ):
            hold(session, step, at=HELD_BEFORE)
            rows, used = main, ids.tolist()
            if DATA == "two":
                try:
                    extra, extra_ids = next(others)
                except StopIteration:
                    others = iter(second)
                    extra, extra_ids = next(others)
                rows, used = torch.cat([rows, extra]), used + [-number - 1 for number in extra_ids.tolist()]
            log.write(json.dumps({"generation": session.generation, "step": step, "ids": used}) + "\n")
            log.flush()
            (model(rows).square().mean() / 2).backward()
            # Gradients of two passes are accumulated.
            loss = model(rows).abs().mean() / 2
            loss.backward()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if step % 25 == 0:
                evaluate(net)
            session.report(loss=loss)
            hold(session, step)
            time.sleep(STEP_MS / 1000)

    Path(f"evaluating_{session.rank}").touch()
    hold(session, -1)
    weights = b"".join(value.numpy().tobytes() for _, value in sorted(net.state_dict().items()))
    Path(f"digest_{session.rank}").write_text(hashlib.sha256(weights).hexdigest())


def hold(session: recovery.Session, step: int, *, at: int = HELD_STEP) -> None:
    """Wait for the test, if this is where it wants the job."""
    while step == at and not Path("go_on").exists():
        session.check()
        time.sleep(0.02)


def _open_files() -> list[int]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * OPEN_FILES, hard))
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(OPEN_FILES)]


def evaluate(net: nn.Module) -> None:
    """An evaluation in between: it draws no dropout and must change nothing."""
    net.eval()
    with torch.no_grad():
        net(torch.ones(4, 16))
    net.train()


if __name__ == "__main__":
    held_open = _open_files() if OPEN_FILES else []
    train()
