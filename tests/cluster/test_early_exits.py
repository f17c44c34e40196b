"""A process that ends before training does, with an exit code that looks like success: a failure by name, like any other."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.leaving_job import teach
from tests.cluster.small_cluster import LAST_STEP, PYTEST, PYTHON, SCRIPT, SmallCluster

pytestmark = pytest.mark.cluster

EXIT_BEFORE_END = 63
IN_ORDER = ["exit", "exit-none", "raise-exit", "quit"]
FACES = pytest.mark.parametrize("face", ["run", "init"])
LEFT = "exit code 0 before the end of training"


def whole(cluster: SmallCluster) -> None:
    cluster.check_result()
    assert cluster.generations() == {1, 2}


@FACES
@pytest.mark.parametrize("way", ["exit", "os-exit"])
def test_a_worker_that_exits_with_0_in_the_loop_is_started_again_by_its_launcher(
    tmp_path: Path, way: str, face: str
) -> None:
    # The grace is long on purpose: a survivor that replaces itself by exec is not lost on a slow machine.
    environment = {"JOB_FACE": face, "JOB_DO": f"leave-by-{way}@12", "MS_RECONNECT_GRACE": "10"}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        teach(tmp_path)
        cluster.start()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        whole(cluster)
        incident = json.loads((cluster.logs / "incident-1.json").read_text())
        assert incident["first"]["process"] == "worker_1"
        status = LEFT if way == "os-exit" else f"exit code {EXIT_BEFORE_END}"
        assert (incident["first"]["status"], incident["followed"]) == (status, [])
        [lost] = cluster.events(EventKind.NODE_LOST)
        assert (lost.event.node_id, LEFT in cluster.reasons_lost()[0]) == ("1", True)


def test_a_worker_that_exits_with_0_at_every_start_fails_the_job_by_its_own_name(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_DO": "leave-by-os-exit@12"}) as cluster:
        teach(tmp_path)
        script = tmp_path / SCRIPT
        script.write_text(script.read_text().replace("(session.generation == 1 or ", "(True or "))
        cluster.start("--max_restarts=1")

        assert cluster.wait_exit(LAUNCHER) == EXIT_BEFORE_END, cluster.tails()
        assert f"the job failed: worker_1 start 2: {LEFT}" in cluster.log(LAUNCHER)


def test_without_recovery_an_exit_with_0_in_the_loop_ends_the_job_by_its_name(tmp_path: Path) -> None:
    with LaunchedCluster(
        tmp_path, environment={"MS_ENABLE_RECOVERY": "0", "JOB_DO": "leave-by-os-exit@12"}
    ) as cluster:
        teach(tmp_path)
        cluster.start()

        assert cluster.wait_exit(LAUNCHER) == EXIT_BEFORE_END, cluster.tails()
        assert f"the job failed: worker_1 start 1: {LEFT}" in cluster.log(LAUNCHER)


def test_a_script_that_never_trains_is_no_done_worker(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        (tmp_path / "nothing.py").write_text("import recovery\n")
        cluster.start(script="nothing.py")

        assert cluster.wait_exit(LAUNCHER) == EXIT_BEFORE_END, cluster.tails()
        assert f"start 1: {LEFT}" in cluster.log(LAUNCHER)


@FACES
@pytest.mark.parametrize("way", IN_ORDER)
def test_an_orderly_exit_in_the_loop_is_reported_and_has_its_own_exit_code(
    tmp_path: Path, way: str, face: str
) -> None:
    environment = {"JOB_FACE": face, "JOB_DO": f"leave-by-{way}@12", "MS_RECONNECT_GRACE": "10"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        teach(tmp_path)
        cluster.start()

        assert cluster.wait_exit("worker_1") == EXIT_BEFORE_END, cluster.tails()
        assert f"event=exit code={EXIT_BEFORE_END} EXIT_BEFORE_END: " in cluster.log("worker_1")
        cluster.wait_event(EventKind.GENERATION_INTERRUPTED)
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert (failed.event.node_id, failed.event.step) == ("worker_1", 11)
        assert failed.event.reason == f"SystemExit: {LEFT}"
        assert SCRIPT in failed.event.details, "no traceback"

        cluster.launch("worker_1")
        cluster.wait_end()
        whole(cluster)


@FACES
def test_an_exit_with_another_code_keeps_it_and_is_reported(tmp_path: Path, face: str) -> None:
    with SmallCluster(tmp_path, environment={"JOB_FACE": face, "JOB_DO": "leave-by-exit-3@12"}) as cluster:
        teach(tmp_path)
        cluster.start()

        assert cluster.wait_exit("worker_1") == 3, cluster.tails()
        cluster.wait_event(EventKind.GENERATION_INTERRUPTED)
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert failed.event.reason == "SystemExit: exit code 3 before the end of training"


def test_peers_of_who_is_not_started_again_blame_who_left(tmp_path: Path) -> None:
    environment = {"MS_TOPO_TIMEOUT": "15", "JOB_DO": "leave-by-exit@12"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        teach(tmp_path)
        cluster.start()

        for name in ("worker_0", "sched"):
            assert cluster.wait_exit(name) == 62
            assert (
                f"missing: worker_1; here: worker_0; first failure: worker_1 lost: its own code raised SystemExit: {LEFT}"
                in cluster.log(name)
            )


@FACES
@pytest.mark.parametrize("way", ["skip", "exit"])
def test_a_test_that_is_skipped_or_left_in_the_loop_is_no_success(
    tmp_path: Path, way: str, face: str
) -> None:
    with SmallCluster(
        tmp_path, command=PYTEST, environment={"JOB_FACE": face, "JOB_DO": f"leave-by-{way}@12"}
    ) as cluster:
        teach(tmp_path)
        cluster.start()

        assert cluster.wait_exit("worker_1") == EXIT_BEFORE_END, cluster.tails()
        cluster.wait_event(EventKind.GENERATION_INTERRUPTED)
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert failed.event.node_id == "worker_1"
        assert "before the end of training" in failed.event.reason


@FACES
@pytest.mark.parametrize("way", ["thread", "fork", "fork-os-exit", "multiprocessing"])
def test_the_exit_of_a_thread_or_of_a_child_is_not_the_workers(tmp_path: Path, way: str, face: str) -> None:
    with SmallCluster(tmp_path, environment={"JOB_FACE": face, "JOB_DO": f"leave-by-{way}@12"}) as cluster:
        teach(tmp_path)
        cluster.start()
        cluster.wait_end()

        assert way == "thread" or (tmp_path / "child_status").read_text() == "0"
        assert not cluster.events(EventKind.NODE_FAILED)
        assert cluster.generations() == {1}
        cluster.check_result()


@FACES
@pytest.mark.parametrize("end", ["break", "return"])
def test_training_that_all_ranks_leave_early_in_order_is_done(tmp_path: Path, end: str, face: str) -> None:
    with SmallCluster(tmp_path, environment={"JOB_FACE": face}) as cluster:
        teach(tmp_path)
        script = tmp_path / SCRIPT
        held = "        for held, permission in"
        assert held in script.read_text(), "small_job holds its step otherwise now"
        script.write_text(
            script.read_text().replace(held, f"        if step == 12:\n            {end}\n{held}")
        )
        script.write_text(script.read_text().replace("    test_train()\n", "    sys.exit(test_train())\n"))
        cluster.start()
        cluster.wait_end()

        [finished] = cluster.events(EventKind.JOB_FINISHED)
        assert finished.event.reason == "all 2 ranks are done at step 11"
        assert cluster.step() == 11 < LAST_STEP


@pytest.mark.parametrize("command", [PYTHON, PYTEST], ids=["python", "pytest"])
def test_a_handler_of_the_users_own_that_exits_with_0_is_reported_too(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    environment = {"JOB_DO": "leave-by-on-sigterm@3", "JOB_HELD_STEP": "40"}
    with SmallCluster(tmp_path, command=command, environment=environment) as cluster:
        teach(tmp_path)
        cluster.start()
        cluster.wait_step(12)
        cluster.signal("worker_1", signal.SIGTERM)

        assert cluster.wait_exit("worker_1") == EXIT_BEFORE_END, cluster.tails()
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert LEFT in failed.event.reason
        whole(cluster)


def test_an_exit_before_the_first_plan_is_no_success_either(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, workers=1) as cluster:
        teach(tmp_path)
        script = tmp_path / SCRIPT
        script.write_text(
            script.read_text().replace("recovery.run(train)()", "recovery.run(warm_up=sys.exit)(train)()")
        )
        cluster.start()

        assert cluster.wait_exit("worker_0") == EXIT_BEFORE_END, cluster.tails()
        assert "EXIT_BEFORE_END: SystemExit: exit code 0 at step 0" in cluster.log("worker_0")


def test_a_script_that_calls_init_and_is_done_fails_with_its_job(tmp_path: Path) -> None:
    """It waits for the others behind its last line, where Python only prints a SystemExit."""
    environment = {"JOB_FACE": "init", "MS_TOPO_TIMEOUT": "15"}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, **({"JOB_HELD_STEP": "50"} if name == "worker_1" else {"JOB_STEP_MS": "2"}))
        cluster.wait((tmp_path / "result_0").exists, "end of the faster rank")
        cluster.kill("worker_1")

        assert cluster.wait_exit("worker_0") == 62, cluster.tails()
        assert "event=exit code=62 WAIT_TIMEOUT: " in cluster.log("worker_0")
        assert "Exception ignored in atexit" not in cluster.log("worker_0")
