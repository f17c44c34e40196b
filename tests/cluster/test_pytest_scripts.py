"""`pytest -s -v train.py` with `recovery.init()` at the head of the script: pytest has not begun its tests there, it imports the module."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import PYTEST, SCRIPT, SmallCluster

pytestmark = pytest.mark.cluster

BEGINS = "# --- how it begins"
HEAD = """
session = recovery.init()


def test_train() -> None:
    train(session)
"""
"""The form of MindSpore's documents, where `init()` stands at the head and a test trains."""
DECORATED_HEAD = """
recovery.run(train)()


def test_nothing() -> None:
    pass
"""
FORMS = pytest.mark.parametrize("form", [HEAD, DECORATED_HEAD], ids=["init", "run"])


def rewrite(directory: Path, form: str) -> None:
    script = directory / SCRIPT
    before, mark, _ = script.read_text().partition(BEGINS)
    assert mark, "small_job begins otherwise now"
    script.write_text(before + form)


@FORMS
def test_module_that_joins_at_its_head_ends_in_every_role_with_0_and_survives_a_killed_worker(
    tmp_path: Path, form: str
) -> None:
    with SmallCluster(tmp_path, command=PYTEST, environment={"JOB_HELD_STEP": "40"}) as cluster:
        rewrite(tmp_path, form)
        cluster.start()
        cluster.wait_step(12)

        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        assert cluster.generations() == {1, 2}
        assert "INTERNALERROR" not in cluster.tails()
        for name in cluster.names:
            assert "1 passed" in cluster.log(name)
        cluster.check_result()


@FORMS
def test_refused_worker_ends_with_its_own_exit_code_and_line(tmp_path: Path, form: str) -> None:
    with SmallCluster(tmp_path, command=PYTEST, environment={"JOB_HELD_STEP": "20"}) as cluster:
        rewrite(tmp_path, form)
        cluster.start()
        cluster.wait_step(12)

        cluster.launch("worker_2")
        assert cluster.wait_exit("worker_2") == 78, cluster.tails()
        assert "event=exit code=78 WORLD_FULL: " in cluster.log("worker_2")
        assert "INTERNALERROR" not in cluster.log("worker_2")
        assert "Traceback" not in cluster.log("worker_2")
        cluster.go_on()
        del cluster.processes["worker_2"]
        cluster.wait_end()
        cluster.check_result()


@FORMS
def test_wrong_setting_ends_with_its_own_exit_code_and_line(tmp_path: Path, form: str) -> None:
    with SmallCluster(tmp_path, command=PYTEST) as cluster:
        rewrite(tmp_path, form)
        for name in ("worker_0", "sched"):
            cluster.launch(name, MS_WORKER_NUM="0")

        for name in ("worker_0", "sched"):
            assert cluster.wait_exit(name) == 22
            assert "SETTING_RANGE: MS_WORKER_NUM='0'" in cluster.log(name)
            assert "Traceback" not in cluster.log(name)


def test_mistake_in_the_test_of_a_module_that_joins_at_its_head_is_reported(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, command=PYTEST) as cluster:
        rewrite(tmp_path, HEAD)
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_DO": "raise@12"} if name == "worker_1" else {}))

        assert cluster.wait_exit("worker_1") == 1
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert (failed.event.node_id, failed.event.step) == ("worker_1", 11)
        cluster.launch("worker_1")
        cluster.wait_end()
        cluster.check_result()
