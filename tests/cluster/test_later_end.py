"""The same command with a later end goes on where the job had finished, and ends with the bits of a training that had that end from the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recovery.report.stored import read_stored
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_three_lines import changed, trained
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

EPOCHS = "epochs=3"


def test_more_epochs_than_last_time(tmp_path: Path) -> None:
    script = changed()
    assert script.count(EPOCHS) == 1
    _, expected = trained(tmp_path / "at_once", script)
    _, shorter = trained(tmp_path / "job", script.replace(EPOCHS, "epochs=2"))
    job = tmp_path / "job"
    assert not torch.equal(shorter["weight"], expected["weight"])
    with LaunchedCluster(job, imports=TORCH) as cluster:
        cluster.start(script="page.py")
        assert cluster.wait_exit(LAUNCHER) == 22, cluster.tails()
        assert "its job has finished (run 1), its checkpoint of step" in cluster.log(LAUNCHER)
    (job / "page.py").write_text(script)
    with LaunchedCluster(job, imports=TORCH, environment={"MS_CONTINUE": "1"}) as cluster:
        cluster.start(script="page.py")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "this start goes on with that run, from step" in cluster.log(LAUNCHER)
    found = torch.load(job / "model.pt")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert read_stored(job / "recovery").job.run == 1
