"""`recovery msrun` starts a job, restarts what dies, and leaves nothing behind, whatever happens to it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.report import stored
from recovery.report.timeline import read_timeline
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import SCRIPT

pytestmark = pytest.mark.cluster

ON_A_TERMINAL = (
    sys.executable,
    "-c",
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
)
KILLED = "killed by SIGKILL"
HELD = {"JOB_HELD_STEP": "40"}
WITHOUT_RECOVERY = {
    "MS_ENABLE_RECOVERY": "0",
    # Who is only silent is not taken for lost while a test waits.
    "MS_NODE_TIMEOUT": "900",
    "MS_HEARTBEAT_RETRY_TIMEOUT": "900",
    **HELD,
}


def assert_nothing_left(cluster: LaunchedCluster) -> None:
    cluster.wait(lambda: not cluster.living(), "end of its processes")
    # A dying process drops its memory before its sockets.
    cluster.wait(lambda: is_free(cluster.port), "the port")


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def test_a_job_runs_to_its_end(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        cluster.start("--tail_worker_log=1")

        assert cluster.wait_exit(LAUNCHER) == 0
        cluster.check_result()
        assert "[1] " in cluster.log(LAUNCHER)
        assert "[0] " not in cluster.log(LAUNCHER)
        *_, course, places = cluster.log(LAUNCHER).splitlines()
        assert re.fullmatch(
            r"job \w{8}, run 1: finished at step 60 after \d+\.\d s; goodput \d+\.\d%; no recovery", course
        )
        assert places.startswith(
            f"last checkpoint: step 60, {tmp_path}/ckpt/0/small-3_20.ckpt; logs: {cluster.logs}; "
        )
        assert_nothing_left(cluster)


UNSAVED = """
import time, recovery
@recovery.run
def train():
    session = recovery.current_session()
    for step in range(1, 41):
        session.check()
        time.sleep(0.03)
        session.applied(step=step, epoch=1, step_in_epoch=step)
train()
"""


def test_a_function_without_parameters_that_saves_nothing_is_told_to_have_come_to_its_last_step(
    tmp_path: Path,
) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        (tmp_path / "unsaved.py").write_text(UNSAVED)
        cluster.start(script="unsaved.py")
        assert cluster.wait_exit(LAUNCHER) == 0
        *_, course, places = cluster.log(LAUNCHER).splitlines()
        assert "finished at step 40 after" in course
        assert places.startswith("no checkpoint that all ranks have; ")


@pytest.mark.parametrize(
    ("address", "task"),
    [
        ("::1", [SCRIPT]),
        ("[::1]", ["python", "-m", "train"]),
        ("localhost", ["pytest", "-s", "-v", SCRIPT]),
        ("127.0.0.1", ["python3", SCRIPT]),
    ],
)
def test_every_form_of_address_and_task(tmp_path: Path, address: str, task: list[str]) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        *words, script = task
        cluster.start(f"--master_addr={address}", *words, script=script)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert_nothing_left(cluster)


@pytest.mark.parametrize(
    ("node_id", "flags"),
    [("1", ["--rejoin=same"]), ("0", ["--rejoin=same"]), ("sched", []), ("1", []), ("0", [])],
)
def test_what_is_killed_is_started_again(tmp_path: Path, node_id: str, flags: list[str]) -> None:
    # Lease and grace are long on purpose: what ends the wait for a killed worker is that its end is seen.
    environment = {"MS_NODE_TIMEOUT": "900", "MS_RECONNECT_GRACE": "6", **HELD}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start(*flags)
        cluster.wait_step(12)

        cluster.kill_node(node_id)
        kind = EventKind.NODE_RESUMED if node_id == "sched" else EventKind.PLAN_MADE
        cluster.wait_event(kind, count=2)
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0
        cluster.check_result()
        name = "scheduler" if node_id == "sched" else f"worker_{node_id}"
        log = cluster.log_of(name)
        assert log.index(f"=== {name} start 1 ") < log.index(f"=== {name} start 2 "), "a log was cut"
        incident = json.loads((cluster.logs / "incident-1.json").read_text())
        assert (incident["first"]["process"], incident["first"]["start"]) == (name, 1)
        assert incident["first"]["status"] == KILLED
        if node_id != "sched":
            admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED, node_id)]
            back = [(2, int(node_id))] if flags else []
            assert [(event.incarnation, event.rank) for event in admitted[1:]] == back
            fresh = [stored.event for stored in cluster.events(EventKind.RANK_TAKEN_OVER)]
            took = [] if flags else [(f"{node_id}.2", 1, int(node_id))]
            assert [(event.node_id, event.incarnation, event.rank) for event in fresh] == took
            [lost] = cluster.events(EventKind.NODE_LOST, node_id)
            assert (lost.event.incarnation, cluster.reasons_lost(node_id)) == (1, [KILLED])
            assert lost.event.reason != "connection closed", "the grace was waited for"
            assert re.search(r"; 1 recovery, \d+ steps? done again$", cluster.log(LAUNCHER), re.MULTILINE)
        assert_nothing_left(cluster)


def test_a_process_that_dies_too_often_fails_the_job_with_its_exit_code(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start("--max_restarts=1")
        cluster.wait_step(6)
        cluster.kill_node("1")
        begun = re.compile(r"^started worker_1 \(pid ([0-9]+), start 2", re.MULTILINE)
        cluster.wait(lambda: begun.search(cluster.log(LAUNCHER)), "its second start")
        found = begun.search(cluster.log(LAUNCHER))
        assert found is not None
        # It may not have been let in before, so it may still have its first id: its number says which it is.
        os.kill(int(found[1]), signal.SIGKILL)

        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGKILL
        assert "--max_restarts times within an hour" in cluster.log(LAUNCHER)
        assert len(list(cluster.logs.glob("incident-*.json"))) == 2
        assert_nothing_left(cluster)


def test_a_program_that_dies_before_its_first_step_is_not_started_again(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"JOB_DO": "raise@1"}) as cluster:
        cluster.start()

        assert cluster.wait_exit(LAUNCHER) == 1
        assert "before the job's first step" in cluster.log(LAUNCHER)
        assert "ZeroDivisionError: a mistake in the user's own code" in cluster.log(LAUNCHER)
        incident = json.loads((cluster.logs / "incident-1.json").read_text())
        assert incident["traceback"][-1] == "ZeroDivisionError: a mistake in the user's own code"
        assert "start 2" not in cluster.log_of("worker_0") + cluster.log_of("worker_1")
        assert_nothing_left(cluster)


def test_without_recovery_the_first_failure_ends_the_job_and_nobody_waits_for_a_lease(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=WITHOUT_RECOVERY) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.kill_node("1")

        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGKILL
        assert "worker_1 start 1: killed by SIGKILL" in cluster.log(LAUNCHER)
        assert_nothing_left(cluster)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_is_asked_to_stop_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.signal(LAUNCHER, number)

        assert cluster.wait_exit(LAUNCHER) == 128 + number
        assert "stopped by SIGTERM" in cluster.log_of("worker_0")
        assert_nothing_left(cluster)


def test_the_time_until_a_stopped_job_is_started_again_is_a_pause_and_costs_no_goodput(
    tmp_path: Path,
) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.signal(LAUNCHER, signal.SIGINT)
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGINT
        cluster.start()
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()

        [stopped] = cluster.events(EventKind.SCHEDULER_STOPPED)
        [again] = cluster.events(EventKind.SCHEDULER_RESTARTED)
        assert stopped.event.reason == "SIGTERM"
        timeline, _ = read_timeline(stored.read_stored(tmp_path / "recovery"))
        assert timeline.paused_ms == again.wall_ms - stopped.wall_ms > 0
        [one] = timeline.recoveries
        assert one.paused_ms == timeline.paused_ms
        assert timeline.goodput > timeline.useful_ms / (timeline.end_ms - timeline.begin_ms)


def test_a_launcher_that_is_killed_takes_everything_with_it(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.kill(LAUNCHER)
        assert_nothing_left(cluster)


def test_a_job_in_the_background_is_ended_by_name(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start("--join=False")
        assert cluster.wait_exit(LAUNCHER) == 0, "it does not wait"
        cluster.wait_step(3)

        stop = [sys.executable, "-m", "recovery", "stop", str(cluster.logs)]
        assert subprocess.run(stop, check=False, timeout=300).returncode == 0
        assert_nothing_left(cluster)
        again = subprocess.run(stop, check=False, timeout=300, capture_output=True, text=True)
        assert again.returncode == 64
        assert "no launcher runs in the background there" in again.stderr


def test_a_wrong_flag_starts_nothing(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        cluster.start("--local_worker_num=9")
        assert cluster.wait_exit(LAUNCHER) == 23
        assert "SETTING_CONFLICT: --local_worker_num=9" in cluster.log(LAUNCHER)
        assert not cluster.logs.exists()
        assert_nothing_left(cluster)


def test_a_terminal_gets_colours_and_a_progress_line(tmp_path: Path) -> None:
    progress = re.compile(r"epoch [1-9]  step [1-9][0-9]*  [0-9.]+ step/s  2/2 ranks  generation 1")
    with LaunchedCluster(tmp_path, environment={**HELD, "TERM": "xterm-256color"}) as cluster:
        cluster.start("--tee=3", prefix=ON_A_TERMINAL)
        cluster.wait(lambda: progress.search(cluster.log(LAUNCHER)), "progress line")
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        shown = cluster.log(LAUNCHER)
        assert re.search(r"\x1b\[36m\[0\] \x1b\[0m.*event=admitted", shown), "rank 0 in its colour"
        assert re.search(r"\x1b\[32m\[1\] \x1b\[0m.*event=admitted", shown)


def test_on_a_terminal_a_recovery_says_what_it_waits_for_and_for_how_long(tmp_path: Path) -> None:
    environment = {**HELD, "TERM": "xterm-256color"}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start("--start_method=spawn", prefix=ON_A_TERMINAL)
        cluster.wait_step(12)
        cluster.kill_node("1")
        awaited = r"recovering \d\.\d s  waiting for rank 1 \((spawn|to be started)\) \d\.\d s  1/2 ranks"
        cluster.wait(lambda: re.search(awaited, cluster.log(LAUNCHER)), "what is waited for")
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "starting " in cluster.log(LAUNCHER)


WITH_AN_END = """
import time, recovery
from pathlib import Path
@recovery.run
def train(session):
    session.total_steps = 40
    for step in range(1, 41):
        session.check()
        while step == 30 and not Path("go_on").exists():
            session.check()
            time.sleep(0.01)
        session.report(loss=0.125)
        session.applied(step=step, epoch=1, step_in_epoch=step)
        time.sleep(0.1)
train()
"""


def test_a_terminal_shows_the_loss_and_when_training_ends_and_status_does_too(tmp_path: Path) -> None:
    shown = re.compile(r"━.*  epoch 1  step [0-9]+/40  [0-9.]+ step/s  loss 0\.125  ETA [0-9.]+ s")
    with LaunchedCluster(tmp_path, environment={"TERM": "xterm-256color", "MS_JOB_TOKEN": "off"}) as cluster:
        (tmp_path / "with_an_end.py").write_text(WITH_AN_END)
        cluster.start(script="with_an_end.py", prefix=ON_A_TERMINAL)
        cluster.wait(lambda: shown.search(cluster.log(LAUNCHER)), "the line")
        asked = [sys.executable, "-m", "recovery", "status", "--connect", f"127.0.0.1:{cluster.port}"]
        status = subprocess.run(asked, check=True, timeout=300, capture_output=True, text=True).stdout
        assert re.search(r"^training +epoch 1  step [0-9]+/40  loss 0\.125$", status, re.MULTILINE)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()


def test_a_person_who_wants_no_such_line_gets_none(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"TERM": "xterm-256color"}) as cluster:
        cluster.start("--progress=False", prefix=ON_A_TERMINAL)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert "\x1b[2K" not in cluster.log(LAUNCHER)


@pytest.mark.parametrize("prefix", [(), None])
def test_no_terminal_or_no_color_means_no_colour_codes(
    tmp_path: Path, prefix: tuple[str, ...] | None
) -> None:
    with LaunchedCluster(tmp_path, environment={"NO_COLOR": "1", "TERM": "xterm"}) as cluster:
        cluster.start("--tee=3", prefix=ON_A_TERMINAL if prefix is None else prefix)
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", cluster.log(LAUNCHER))


def test_a_second_interrupt_ends_it(tmp_path: Path) -> None:
    """A worker that does not listen is waited for, but not by a person who asks twice."""
    with LaunchedCluster(tmp_path, environment={"JOB_DO": "deaf@4", **HELD}) as cluster:
        cluster.start()
        cluster.wait_step(5)
        cluster.signal(LAUNCHER, signal.SIGINT)
        cluster.wait(lambda: "asked to stop by SIGINT" in cluster.log(LAUNCHER), "first answer")
        cluster.signal(LAUNCHER, signal.SIGINT)
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGINT
        assert_nothing_left(cluster)


def test_who_does_not_end_when_it_is_asked_is_killed_and_that_is_said(tmp_path: Path) -> None:
    environment = {"JOB_DO": "deaf@4", "MS_STOP_GRACE": "2", **HELD}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= 5, "step 5 of all")
        cluster.signal(LAUNCHER, signal.SIGINT)
        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGINT
        killed = r"asked to end, and killed [0-9.]+ s later: worker_0 \(pid [0-9]+\), worker_1 \(pid [0-9]+\)"
        assert re.search(killed, cluster.log(LAUNCHER))
        assert_nothing_left(cluster)


def test_processors_names_and_all_variables_reach_the_processes(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment={"RANK_ID": "77", "MS_NODE_ID": "other"}) as cluster:
        first = min(os.sched_getaffinity(0))
        cluster.start(
            f'--bind_core={{"device1": ["{first}"]}}', "--worker_log_name=w_{ip}", "--cluster-time-out=77"
        )
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert {path.name for path in cluster.logs.glob("*.log")} == {
            "scheduler.log",
            "w_127.0.0.1_0.log",
            "w_127.0.0.1_1.log",
        }
        seen = cluster.seen("1")
        assert seen["processors"] == [first]
        expected = {"MS_TOPO_TIMEOUT": "77", "MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2", "MS_NODE_ID": "1"}
        assert {name: seen["environment"][name] for name in expected} == expected
