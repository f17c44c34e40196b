"""A script as Lightning's documents write them: three changed lines, and it recovers with the bits of the unchanged one."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recovery.core.records import EventKind
from tests.cluster.launched import LaunchedCluster
from tests.pace import HANG_S

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]

EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning"


def test_three_changed_lines_make_the_example_recoverable() -> None:
    plain, recoverable = ((EXAMPLE / name).read_text().splitlines() for name in ("plain.py", "train.py"))
    changed = [
        line[1:]
        for line in difflib.unified_diff(plain, recoverable, lineterm="")
        if line.startswith("+") and not line.startswith("+++")
    ]
    assert len([line for line in changed if line.strip()]) <= 3, changed


@pytest.mark.slow
def test_a_script_without_a_job_of_ours_trains_as_ever(tmp_path: Path) -> None:
    script = (EXAMPLE / "train.py").read_text().replace("@run\n", "")
    (tmp_path / "train.py").write_text(script.replace("devices=2", "devices=1").replace("=12", "=1"))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        timeout=HANG_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "final.ckpt").exists()
    assert not (tmp_path / "recovery_checkpoints").exists()


@pytest.mark.slow
def test_the_example_ends_as_lightning_itself_whoever_dies(tmp_path: Path) -> None:
    plain, disturbed = tmp_path / "plain", tmp_path / "disturbed"
    plain.mkdir()
    disturbed.mkdir()
    with LaunchedCluster(disturbed, workers=2, environment={"GLOO_SOCKET_IFNAME": "lo"}) as cluster:
        cluster.start(script=str(EXAMPLE / "train.py"))
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        survivor = cluster.pid_of("0")
        cluster.kill_node("1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.pid_of("0") == survivor
        cluster.wait_end()
        assert "workers are forked from it" in cluster.log("launcher")
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step in (100, 200, 300, 400, 500, 600)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, EXAMPLE / "plain.py"], cwd=plain, env=environment, check=True, timeout=HANG_S)

    expected, found = _weights(plain), _weights(disturbed)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    names = [sorted(path.name for path in (run / "best").glob("*.ckpt")) for run in (plain, disturbed)]
    assert names[0] == names[1]


def _weights(run: Path) -> dict[str, Any]:
    weights: dict[str, Any] = torch.load(run / "final.ckpt", weights_only=True)["state_dict"]
    return weights
