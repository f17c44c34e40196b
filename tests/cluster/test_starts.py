"""How processes are started: as the documents show it, as scripts do it by accident, and what reaches training."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import PYTEST, PYTHON, SCRIPT, SmallCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.cold_start(reason="how a person starts a process is the subject"),
]

HELD = {"JOB_HELD_STEP": "40"}
FRAMEWORK = {
    "MS_HCCL_CM_INIT": "1",
    "MS_ENABLE_LCCL": " 1 ",
    "MS_DISABLE_LCCL_KERNELS_LIST": "AllReduce,ReduceScatter",
}
"""Not ours to read: even what looks mistyped arrives as it was set."""


def test_script_started_by_pytest_in_every_role_survives_a_killed_worker(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, command=PYTEST, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(12)

        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, "worker_1")]
        assert [(event.incarnation, event.rank) for event in admitted[1:]] == [(2, 1)]
        assert cluster.generations() == {1, 2}
        for name in cluster.names:
            assert "1 passed" in cluster.log(name)
        cluster.check_result()


def test_training_function_that_is_itself_the_test_runs_under_pytest(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, workers=1, command=PYTEST) as cluster:
        script = tmp_path / SCRIPT
        script.write_text(
            script.read_text().partition("def test_train()")[0]
            + "@recovery.run\ndef test_train(session: recovery.Session) -> None:\n    train(session)\n"
        )
        cluster.start()
        cluster.wait_end()
        cluster.check_result()


def test_a_link_to_the_checkpoints_that_is_turned_between_two_starts_is_followed(tmp_path: Path) -> None:
    (tmp_path / "old_disk").mkdir()
    (tmp_path / "ckpt").symlink_to("old_disk")
    with SmallCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(39)
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=7)
        cluster.kill("sched", *cluster.names)

        (tmp_path / "old_disk").rename(tmp_path / "new_disk")
        (tmp_path / "ckpt").unlink()
        (tmp_path / "ckpt").symlink_to("new_disk")
        cluster.go_on()
        cluster.start()
        cluster.wait_end()

        assert [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)] == [0, 35]
        cluster.check_result()


def test_processes_whose_standard_streams_are_closed_train_to_the_end(tmp_path: Path) -> None:
    closed = ("/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *PYTHON)
    with SmallCluster(tmp_path, command=closed) as cluster:
        cluster.start()
        cluster.wait_end()
        cluster.check_result()


def test_wrong_setting_under_pytest_ends_with_its_own_exit_code_and_line(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, command=PYTEST) as cluster:
        cluster.launch("worker_0", MS_WORKER_NUM="0")
        cluster.launch("sched", MS_WORKER_NUM="0")

        for name in ("worker_0", "sched"):
            assert cluster.wait_exit(name) == 22
            assert "SETTING_RANGE: MS_WORKER_NUM='0'" in cluster.log(name)
            assert "Traceback" not in cluster.log(name)


@pytest.mark.parametrize("leaked", ["worker_1", "0", "not a node id!", ""])
def test_scheduler_ignores_the_node_id_that_it_inherits(tmp_path: Path, leaked: str) -> None:
    with SmallCluster(tmp_path, environment={"JOB_STEP_MS": "2"}) as cluster:
        for name in cluster.names:
            cluster.launch(name)
        cluster.launch("sched", MS_NODE_ID=leaked)

        cluster.wait_end()

        assert {stored.event.node_id for stored in cluster.events(EventKind.NODE_ADMITTED)} == set(
            cluster.names
        )
        cluster.check_result()


def test_variables_of_the_framework_reach_training_untouched_over_a_rollback(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={**FRAMEWORK, **HELD}) as cluster:
        cluster.start()
        cluster.wait_step(7)
        cluster.kill_and_relaunch("worker_0")
        cluster.go_on()
        cluster.wait_end()

        for name in cluster.names:
            seen = cluster.seen(name)
            assert seen["generation"] == 2
            assert FRAMEWORK.items() <= seen["environment"].items()
            assert "MS_RESUME_TOKEN" not in seen["environment"]


def test_relative_recovery_path_stays_where_the_process_started_when_training_changes_the_directory(
    tmp_path: Path,
) -> None:
    environment = {"MS_RECOVERY_PATH": "./recovery/", "JOB_DO": "chdir@3", **HELD}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(12)
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.kill_and_relaunch("worker_1")
        cluster.go_on()
        cluster.wait_end()

        assert stat.S_IMODE((tmp_path / "recovery").stat().st_mode) == 0o700
        assert (tmp_path / "recovery/workers/worker_1.db").exists()
        assert list((tmp_path / "elsewhere").iterdir()) == []
        assert (cluster.events(EventKind.PLAN_MADE)[-1].event.step or 0) >= 5, "it began again"
        cluster.check_result()
