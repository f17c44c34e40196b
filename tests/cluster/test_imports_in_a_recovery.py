"""While a rank comes back all others wait: what its recovery needs was imported before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

OF_TORCH = {"torch.profiler._cupti_monitor"}
"""What torch 2.13 imports in the first step of each process, half a millisecond."""
SCRIPT = """
import json
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import recovery
import recovery.torch as rt

DATA = TensorDataset(torch.arange(40.0).reshape(40, 1))
BEFORE = set()


@recovery.run
def train(session):
    rt.init_process_group(session)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    state = rt.TrainState(
        model=model, optimizer=optimizer, loader=rt.ResumableLoader(DATA, session=session, batch_size=2)
    )
    config = recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("train", f"ckpt/{session.rank}", config)
    is_first = True
    for step, (rows,) in session.steps(state, epochs=1, callbacks=[saver]):
        if is_first and session.generation > 1:
            Path(f"imported_{session.rank}").write_text(json.dumps(sorted(set(sys.modules) - BEFORE)))
        is_first = False
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        while session.generation == 1 and step == 8:
            BEFORE.update(sys.modules)
            Path(f"waits_{session.rank}").touch()
            session.check()
            time.sleep(0.02)


BEFORE.update(sys.modules)
train()
"""


def test_neither_the_replacement_nor_a_survivor_imports_what_its_recovery_needs(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, imports=TORCH) as cluster:
        (tmp_path / "importing.py").write_text(SCRIPT)
        cluster.start("--start_method=fork", script="importing.py")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.wait(lambda: len([*tmp_path.glob("waits_*")]) == cluster.workers, "both ranks at step 8")
        cluster.kill_node("1")

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        imported = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("imported_*")}
        assert set(imported) == {"imported_0", "imported_1"}
        assert {name for names in imported.values() for name in names} <= OF_TORCH, imported
