"""What logs and incidents say under PyTorch: the traceback as Python wrote it, and the rank once it is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import plain_ddp
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import PYTEST, SCRIPT, SmallCluster
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

RAISES = "ZeroDivisionError: a mistake in the user's own code"
TRAINS = """
import os
import torch
from torch.nn.parallel import DistributedDataParallel
import recovery
import recovery.torch as rt


def train(session):
    rt.init_process_group(session)
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = rt.ResumableLoader(list(torch.ones(64, 8)), batch_size=4, session=session)
    state = rt.TrainState(model=model, optimizer=optimizer, loader=loader)
    for step, batch in session.steps(state, epochs=1):
        if step == 3 and session.generation < 3 and session.rank == 1:
            raise ZeroDivisionError(f"mistake {session.generation}")
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()


if os.environ["FACE"] == "init":
    train(recovery.init())
else:
    recovery.run(train)()
"""


def incidents(cluster: LaunchedCluster) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(cluster.logs.glob("incident-*.json"))]


@pytest.mark.slow
@pytest.mark.parametrize("face", ["run", "init"])
def test_a_mistake_under_torch_is_kept_with_its_traceback_in_every_generation(
    tmp_path: Path, face: str
) -> None:
    environment = {"FACE": face, "MS_RECONNECT_GRACE": "10"}
    with LaunchedCluster(tmp_path, environment=environment, imports=TORCH) as cluster:
        (tmp_path / "train_torch.py").write_text(TRAINS)
        cluster.start(script="train_torch.py")

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        found = incidents(cluster)
        assert [incident["first"]["process"] for incident in found] == ["worker_1", "worker_1"]
        for number, incident in enumerate(found, start=1):
            traceback = incident["traceback"]
            assert traceback[0] == "Traceback (most recent call last):"
            assert traceback[-1] == f"ZeroDivisionError: mistake {number}"
            assert any("train_torch.py" in line for line in traceback)
        for name in ("worker_0", "worker_1"):
            assert "[rank" not in cluster.log_of(name), "a traceback with prefixes"


def test_a_mistake_of_a_script_that_knows_nothing_of_recovery_is_kept_without_torchs_prefixes(
    tmp_path: Path,
) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_RAISE": "1@7"}, imports=TORCH) as cluster:
        shutil.copy(plain_ddp.__file__, tmp_path / SCRIPT)
        cluster.start("--max_restarts=0")

        assert cluster.wait_exit(LAUNCHER) == 1, cluster.tails()
        [incident] = incidents(cluster)
        traceback = incident["traceback"]
        assert (traceback[0], traceback[-1]) == ("Traceback (most recent call last):", RAISES)


@pytest.mark.parametrize("face", ["run", "init"])
def test_the_rank_is_printed_and_exported_once_it_is_known(tmp_path: Path, face: str) -> None:
    with SmallCluster(
        tmp_path, command=PYTEST, environment={"JOB_FACE": face, "JOB_HELD_STEP": "40"}
    ) as cluster:
        script = tmp_path / SCRIPT
        head = "def train(session: recovery.Session) -> None:\n"
        notes = '    (HERE / f"rank_id_{session.rank}").write_text(os.environ["RANK_ID"])\n'
        assert head in script.read_text()
        script.write_text(script.read_text().replace(head, head + notes))
        cluster.start()
        cluster.wait_step(12)
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        for rank, name in enumerate(cluster.names):
            assert f"Global rank id: {rank}" in cluster.log(name)
            assert (tmp_path / f"rank_id_{rank}").read_text() == str(rank)
