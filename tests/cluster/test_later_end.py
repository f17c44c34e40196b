"""The same command with a later end goes on where the job had finished, and ends with the bits of a training that had that end from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recovery.report.stored import read_stored
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_three_lines import changed, trained
from tests.pace import HANG_S
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

EPOCHS = "epochs=3"
STEP = "            optimizer.step()\n"
EARLIER = {
    "more epochs": (EPOCHS, "epochs=2"),
    "without the break": (
        STEP,
        f"{STEP}            if __import__('recovery').current_session().step == 45:\n                break\n",
    ),
    "a larger maximum": (
        STEP,
        f"{STEP}            session = __import__('recovery').current_session()\n            session.step == 45 and session.stop('enough')\n",
    ),
}
"""What a script had, and has no longer when its job goes on."""


@pytest.mark.parametrize("more", EARLIER)
def test_a_later_end_than_last_time(tmp_path: Path, more: str) -> None:
    script, (now, then) = changed(), EARLIER[more]
    assert script.count(now) == 1
    _, expected = trained(tmp_path / "at_once", script)
    _, shorter = trained(tmp_path / "job", script.replace(now, then))
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


@pytest.mark.parametrize(
    ("flag", "run", "said"),
    [("--continue", 1, "this start goes on with that run, from step"), ("--new-run", 2, "run 2")],
)
def test_recovery_run_is_told_by_its_flag_what_to_do_with_a_job_that_has_finished(
    tmp_path: Path, flag: str, run: int, said: str
) -> None:
    line = [sys.executable, "-m", "recovery", "run", "--standalone", "--nproc-per-node=1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}

    def ended(epochs: str, *flags: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "page.py").write_text(changed().replace(EPOCHS, epochs))
        words = [*line, *flags, "page.py"]
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
        )

    first, undecided, decided = ended("epochs=1"), ended("epochs=2"), ended("epochs=2", flag)

    assert (first.returncode, undecided.returncode) == (0, 22)
    assert decided.returncode == 0, decided.stdout + decided.stderr
    assert said in decided.stdout + decided.stderr
    assert read_stored(tmp_path / "recovery").job.run == run
