"""SIGTERM to every process of a job, as Slurm and systemd send it, where data loaders have worker processes: all save at one step. Real processes."""

from __future__ import annotations

import contextlib
import random
import signal
from pathlib import Path

import psutil
import pytest
import torch

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_last_save import saved_step
from tests.cluster.test_launcher import assert_nothing_left
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

HELD = 25
SCRIPT = """
import os
import sys
import time

import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import recovery
import recovery.torch as rt
from recovery import ModelCheckpoint, CheckpointConfig

WAY, CONTEXT = "@way", "@context"
OPTIONS = {"batch_size": 16, "num_workers": 2, "multiprocessing_context": CONTEXT}


def parts():
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), TensorDataset(torch.rand(512, 20), torch.rand(512, 1))


def step(session, model, optimizer, rows, targets):
    optimizer.zero_grad()
    mse_loss(model(rows), targets).backward()
    optimizer.step()
    if session.step + 1 == @held and not os.path.exists("go_on"):
        # A loader that nothing of ours has made.
        for batch in DataLoader(TensorDataset(rows), num_workers=2, multiprocessing_context=CONTEXT):
            open(f"held_{session.rank}", "w").close()
            while not os.path.exists("go_on"):
                session.check()
                time.sleep(0.01)


def three_lines():
    session = rt.join("gloo")
    model, optimizer, data = parts()
    loader = DataLoader(data, shuffle=True, persistent_workers=True, **OPTIONS)
    for rows, targets in rt.steps(loader, model, optimizer, epochs=3, save_every=1000):
        step(session, model, optimizer, rows, targets)
    if session.rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


@recovery.run
def train(session):
    rt.init_process_group(session)
    model, optimizer, data = parts()
    loader = rt.ResumableLoader(data, session=session, **OPTIONS)
    state = rt.TrainState(model=model, optimizer=optimizer, loader=loader)
    config = CheckpointConfig(save_checkpoint_steps=1000)
    saver = ModelCheckpoint("train", f"checkpoints/{session.rank}", config)
    for _, (rows, targets) in session.steps(state, epochs=3, callbacks=[saver]):
        step(session, model, optimizer, rows, targets)
    if session.rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


if __name__ == "__main__":
    three_lines() if WAY == "three lines" else train()
"""


def start(cluster: LaunchedCluster, way: str, context: str) -> None:
    text = SCRIPT.replace("@way", way).replace("@context", context).replace("@held", str(HELD))
    (cluster.directory / "loaders.py").write_text(text)
    cluster.start(script="loaders.py")


def weights(cluster: LaunchedCluster) -> dict[str, torch.Tensor]:
    assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
    found: dict[str, torch.Tensor] = torch.load(cluster.directory / "model.pt")
    return found


@pytest.mark.parametrize(
    ("way", "context"), [("three lines", "fork"), ("a function", "fork"), ("three lines", "spawn")]
)
def test_a_signal_to_all_processes_ends_no_worker_of_a_loader_before_its_rank_has_saved(
    tmp_path: Path, way: str, context: str
) -> None:
    """Those of the training loader, that stay or not, and of one in a step, as of an evaluation."""
    for name in ("undisturbed", "stopped"):
        (tmp_path / name).mkdir()
    with LaunchedCluster(tmp_path / "undisturbed", imports=TORCH) as cluster:
        cluster.go_on()
        (cluster.directory / "go_on").touch()
        start(cluster, way, context)
        expected = weights(cluster)
    with LaunchedCluster(tmp_path / "stopped", imports=TORCH) as cluster:
        start(cluster, way, context)
        held = [cluster.directory / f"held_{rank}" for rank in range(2)]
        cluster.wait(lambda: all(path.exists() for path in held), "the held step")
        launcher = psutil.Process(cluster.processes[LAUNCHER].pid)
        everybody = [launcher, *launcher.children(recursive=True)]
        assert len(everybody) >= 1 + 1 + 2 * (1 + 2 + 2)
        random.Random(f"{way}/{context}").shuffle(everybody)
        for process in everybody:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        (cluster.directory / "go_on").touch()
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGTERM, cluster.tails()
        assert_nothing_left(cluster)
        step = saved_step(cluster)
        assert step >= HELD
        start(cluster, way, context)
        found = weights(cluster)
        assert [one.event.step for one in cluster.events(EventKind.PLAN_MADE)] == [0, step]
    assert all(torch.equal(found[name], value) for name, value in expected.items())
