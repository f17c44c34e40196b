"""A rank that has done its part waits for the others. Asked to stop there, its process ends as one that was stopped, not as one that was done."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster.small_cluster import SCRIPT, SmallCluster

pytestmark = pytest.mark.cluster

_SIGNALLED = """

def signalled(frame, event, arg):
    if event == "call" and frame.f_code is TrainingControl.await_end.__code__:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)


import recovery
from recovery.worker.training_control import TrainingControl

if os.environ["MS_NODE_ID"] == "worker_0":
    sys.setprofile(signalled)
"""


@pytest.mark.parametrize("face", ["init", "run"])
def test_ctrl_c_while_a_rank_waits_for_the_others_is_its_exit_code(tmp_path: Path, face: str) -> None:
    with SmallCluster(tmp_path, environment={"JOB_FACE": face}) as cluster:
        script = tmp_path / SCRIPT
        script.write_text(script.read_text().replace("import recovery\n", _SIGNALLED, 1))
        cluster.launch("sched")
        cluster.launch("worker_0")
        # The other rank is never done.
        cluster.launch("worker_1", JOB_HELD_STEP="30")
        assert cluster.wait_exit("worker_0") == 128 + signal.SIGINT, cluster.tails()
        assert "event=exit code=130 STOPPED: stopped by SIGINT" in cluster.log("worker_0")
        assert "Traceback" not in cluster.log("worker_0")
