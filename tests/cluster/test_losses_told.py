"""What a script reports as its loss: only the thread that trains asks it for its value, whatever goes to the scheduler meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import RecoveryError
from recovery.store.reader import read_worker
from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster

HELD_STEP = 5
SCRIPT = f"""
import json, threading, time
from pathlib import Path
import recovery
from tests.cluster.small_job import Tally

asked = set()

class Loss:
    device = "cpu"

    def __float__(self):
        asked.add(threading.current_thread().name)
        return 0.5

@recovery.run
def train(session):
    for step, _ in session.steps(Tally(), epochs=1):
        session.report(loss=Loss())
        while step == {HELD_STEP} and not Path("go_on").exists():
            session.check()
            time.sleep(0.02)
    Path("asked.json").write_text(json.dumps(sorted(asked)))

train()
"""


def test_a_loss_is_asked_for_its_value_by_the_thread_that_trains(tmp_path: Path) -> None:
    def has_told() -> bool:
        try:
            told = read_worker(tmp_path / "recovery", "worker_0").step
        except RecoveryError:
            return False
        return told is not None and told.step == HELD_STEP - 1

    with SmallCluster(tmp_path, workers=1) as cluster:
        (tmp_path / "train.py").write_text(SCRIPT)
        cluster.start()
        cluster.wait(has_told, "a heartbeat that says how far training is")
        cluster.go_on()
        cluster.wait_end()
    assert (tmp_path / "asked.json").read_text() == '["MainThread"]'
