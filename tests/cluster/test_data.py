"""Where others lose data: after a rollback every sample is used exactly as in the undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed

pytestmark = pytest.mark.cluster

CASES = {
    "one loader process": {"JOB_NUM_WORKERS": "1"},
    "two loader processes": {"JOB_NUM_WORKERS": "2"},
    "two loaders in one loop": {"JOB_DATA": "two"},
    "a stream without length": {"JOB_DATA": "iterable"},
    "a stream and two loader processes": {"JOB_DATA": "iterable", "JOB_NUM_WORKERS": "2"},
    "a checkpoint exactly at an epoch's last step": {"JOB_SAVE_STEPS": "20", "JOB_SAMPLES": "640"},
}


@pytest.mark.parametrize("case", CASES)
def test_every_sample_is_used_as_if_nothing_had_failed(
    tmp_path: Path, undisturbed: Undisturbed, case: str
) -> None:
    environment, step = CASES[case], 45 if "epoch" in case else 33
    held = {**environment, "JOB_HELD_STEP": str(step + 1)}
    with Cluster(tmp_path, workers=2, environment=held) as cluster:
        cluster.start()
        cluster.wait_step(step)
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed(workers=2, **environment))
