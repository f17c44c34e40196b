"""A process that is stopped inside a save and replaced meanwhile must not give its file the name that is its successor's now."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster import slow_save
from tests.cluster.small_cluster import SCRIPT, SmallCluster

pytestmark = pytest.mark.cluster

SHORT_LEASE = {"MS_NODE_TIMEOUT": "12", "MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
FILE = "small-1_10.ckpt"


def start_and_wait_inside_a_save(cluster: SmallCluster) -> None:
    """Start everything; worker_1 stands inside the save of step 10 until the file `save_on` is there."""
    shutil.copy(slow_save.__file__, cluster.directory / SCRIPT)
    cluster.launch("worker_0")
    cluster.launch("worker_1", JOB_HOLD_SAVE="10")
    cluster.launch("sched")
    cluster.wait((cluster.directory / "saving").exists, "save of step 10")


def test_a_process_that_was_replaced_while_it_stood_inside_a_save_does_not_finish_it(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment=SHORT_LEASE) as cluster:
        start_and_wait_inside_a_save(cluster)
        old = cluster.processes["worker_1"]
        cluster.signal("worker_1", signal.SIGSTOP)
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        # It has not saved step 10 yet.
        cluster.launch("worker_1", JOB_HELD_STEP="7")
        cluster.wait_step(6, generation=2)

        (tmp_path / "save_on").touch()
        old.send_signal(signal.SIGCONT)
        cluster.wait(lambda: old.poll() is not None, "end of the fenced process")

        assert old.returncode == 76
        assert not (tmp_path / f"ckpt/1/{FILE}").exists(), "a fenced incarnation finished its save"
        assert "event=checkpoint_not_saved step=10" in cluster.log("worker_1")
        assert not [path.name for path in (tmp_path / "ckpt/1").glob(".small-1_10*")]
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


def test_a_process_that_was_paused_inside_a_save_and_kept_its_place_finishes_it(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment=SHORT_LEASE) as cluster:
        start_and_wait_inside_a_save(cluster)
        cluster.signal("worker_1", signal.SIGSTOP)
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        cluster.signal("worker_1", signal.SIGCONT)
        (tmp_path / "save_on").touch()
        cluster.wait_event(EventKind.NODE_RESUMED, "worker_1")

        cluster.wait_end()
        assert "event=paused" in cluster.log("worker_1")
        assert "event=checkpoint_not_saved" not in cluster.log("worker_1")
        cluster.check_result()
