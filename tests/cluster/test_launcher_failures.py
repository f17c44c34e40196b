"""What fails in the launcher itself, or under it: it never reports success for it, and it gives up only what cannot go on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_launcher import assert_nothing_left
from tests.small_disk import small_disk

pytestmark = pytest.mark.cluster

HELD = {"JOB_HELD_STEP": "40"}


def logged(cluster: LaunchedCluster, text: str) -> bool:
    """Has the launcher said so?"""
    return text in cluster.log(LAUNCHER)


@pytest.fixture
def log_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory `logs` on a file system of its own with 64 KiB. Needs root."""
    with small_disk(tmp_path / "logs", "size=64k") as place:
        yield place


def fill(disk: Path) -> None:
    """Until not one byte more fits."""
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)


def unstartable(directory: Path) -> str:
    """A PATH whose numactl is found, and cannot be started."""
    (directory / "bin").mkdir()
    program = directory / "bin" / "numactl"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    return f"{directory / 'bin'}:{os.environ['PATH']}"


@pytest.mark.parametrize("recovery_enabled", ["1", "0"])
def test_a_command_that_cannot_be_started_is_no_success(tmp_path: Path, recovery_enabled: str) -> None:
    environment = {"PATH": unstartable(tmp_path), "MS_ENABLE_RECOVERY": recovery_enabled}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        cluster.start("--bind_numa=True")

        assert cluster.wait_exit(LAUNCHER) == ROWS["LAUNCH_FAILED"].exit_code, cluster.tails()
        assert re.search("^LAUNCH_FAILED: worker_[01]: ", cluster.log(LAUNCHER), re.MULTILINE)
        assert logged(cluster, "No such file or directory")
        assert_nothing_left(cluster)


def test_a_relaunch_that_fails_for_want_of_descriptors_is_tried_again(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start("--max_restarts=20")
        cluster.wait_step(6)
        launcher = cluster.processes[LAUNCHER].pid
        limits = resource.prlimit(launcher, resource.RLIMIT_NOFILE)
        resource.prlimit(launcher, resource.RLIMIT_NOFILE, (4, limits[1]))
        cluster.kill_node("1")
        cluster.wait(lambda: logged(cluster, "could not be started"), "a relaunch that failed")
        cluster.go_on()
        resource.prlimit(launcher, resource.RLIMIT_NOFILE, limits)

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert logged(cluster, "worker_1 start 2: could not be started (Too many open files)")
        assert_nothing_left(cluster)


@pytest.mark.slow
def test_what_can_never_be_started_again_ends_the_job_by_name(tmp_path: Path) -> None:
    """The launcher waits as long as the scheduler does, and either may be the first to end."""
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start("--max_restarts=1", "--cluster_time_out=40")
        cluster.wait_step(6)
        resource.prlimit(cluster.processes[LAUNCHER].pid, resource.RLIMIT_NOFILE, (4, 4))
        cluster.kill_node("1")

        codes = {ROWS[name].exit_code for name in ("LAUNCH_FAILED", "WAIT_TIMEOUT")}
        assert cluster.wait_exit(LAUNCHER) in codes, cluster.tails()
        assert logged(cluster, "it never began; it is tried again, which uses up no restart")
        assert_nothing_left(cluster)


def test_a_full_log_disk_keeps_no_worker_from_its_relaunch_and_an_incident_that_is_not_written_is_said(
    tmp_path: Path, log_disk: Path
) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)
        fill(log_disk)
        cluster.kill_node("1")
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert logged(cluster, "worker_1 start 2")
        assert logged(cluster, "logs/incident could not be written (No space left on device")
        assert_nothing_left(cluster)


@pytest.mark.parametrize("asked", ["1", "sched", LAUNCHER])
def test_on_a_full_log_disk_a_process_that_is_asked_to_end_is_not_taken_for_one_that_has_finished(
    tmp_path: Path, log_disk: Path, asked: str
) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)
        fill(log_disk)
        if asked == LAUNCHER:
            cluster.signal(LAUNCHER, signal.SIGINT)
            assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGINT, cluster.tails()
            assert not logged(cluster, "finished")
        else:
            os.kill(cluster.pid_of(asked), signal.SIGTERM)
            cluster.wait(lambda: logged(cluster, ", start 2"), f"another process of {asked}")
            cluster.go_on()
            assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
            cluster.check_result()
            assert not logged(cluster, "its training was done")
        assert_nothing_left(cluster)


def test_a_log_that_was_deleted_stops_nothing(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)
        (cluster.logs / "worker_1.log").unlink()
        cluster.kill_node("1")
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert "=== worker_1 start 2 " in cluster.log_of("worker_1")


CONSOLES = {
    "full": "os.dup2(os.open('/dev/full', 1), 1)",
    "a pipe that nobody reads any more": "r, w = os.pipe(); os.dup2(w, 1); os.close(r); os.close(w)",
    "none": "os.close(1)",
    "a pipe from which nobody takes": (
        "r, w = os.pipe(); os.set_inheritable(r, True); os.dup2(w, 1); os.write(1, b'.' * 65_536)"
    ),
}


@pytest.mark.parametrize("console", CONSOLES)
def test_a_console_that_cannot_be_written_changes_no_exit_code(tmp_path: Path, console: str) -> None:
    changed = f"import os, sys; {CONSOLES[console]}; os.execv(sys.argv[1], sys.argv[1:])"
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start(prefix=(sys.executable, "-c", changed))
        cluster.wait_step(6)
        cluster.kill_node("1")
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()


def test_a_scheduler_whose_store_failed_starts_again_from_what_is_on_disk(tmp_path: Path) -> None:
    # As most people run it: what was printed is written at the end, when the file takes no more.
    with LaunchedCluster(tmp_path, environment={**HELD, "PYTHONUNBUFFERED": ""}) as cluster:
        cluster.start()
        cluster.wait_step(12)
        # What is written behind this size fails: the kernel's answer to a disk that takes no more of a file.
        resource.prlimit(cluster.pid_of("sched"), resource.RLIMIT_FSIZE, (1, 1))
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        cluster.check_result()
        assert logged(cluster, "scheduler start 1: exit code 28")
        assert [stored.event.generation for stored in cluster.events(EventKind.PLAN_MADE)] == [1]
        assert_nothing_left(cluster)


def lost_while_it_hangs(directory: Path, deed: str) -> LaunchedCluster:
    """gil_job.py, whose rank 1 does this at step 12, with a short lease."""
    environment = {
        "JOB_DO": f"{deed}@12",
        "MS_NODE_TIMEOUT": "6",
        "MS_RETRY_INTERVAL_LOWER": "1",
        "MS_RETRY_INTERVAL_UPPER": "2",
        "MS_RECEIVE_MSG_TIMEOUT": "3",
    }
    shutil.copy(Path(__file__).with_name("gil_job.py"), directory)
    return LaunchedCluster(directory, environment=environment)


def assert_the_lost_process_was_ended(cluster: LaunchedCluster) -> None:
    cluster.wait_event(EventKind.NODE_LOST)
    assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
    cluster.check_result()
    assert logged(cluster, "ended by its launcher: its node was lost: silent for ")
    assert_nothing_left(cluster)


@pytest.mark.parametrize("rejoin", ["same", "new"])
def test_a_node_that_was_lost_while_its_process_hangs_is_ended_and_started_again(
    tmp_path: Path, rejoin: str
) -> None:
    """It keeps the interpreter's lock: none of its own threads can notice that it is lost, nor hear a signal."""
    with lost_while_it_hangs(tmp_path, "hold") as cluster:
        cluster.start(f"--rejoin={rejoin}", script="gil_job.py")
        assert_the_lost_process_was_ended(cluster)
        assert logged(cluster, "(where it hangs is in its log)")
        stacks = "".join(cluster.log_of(f"worker_{rank}") for rank in range(2))
        assert re.search(r"Current thread .* \(most recent call first\):\n  File .*gil_job", stacks), stacks
        admitted = [stored.event for stored in cluster.events(EventKind.NODE_ADMITTED)]
        assert {event.incarnation for event in admitted} == ({1, 2} if rejoin == "same" else {1})
        assert len({event.node_id for event in admitted}) == (2 if rejoin == "same" else 3)


def test_a_lost_process_whose_hang_a_signal_would_end_trains_no_more(tmp_path: Path) -> None:
    """It went on until it was killed: where that was the end of the training, the job that had finished failed."""
    with lost_while_it_hangs(tmp_path, "pause") as cluster:
        cluster.start(script="gil_job.py")
        assert_the_lost_process_was_ended(cluster)
        assert "event=resumed" not in cluster.log_of("worker_1")


def test_a_lost_process_that_is_stopped_is_said_to_be(tmp_path: Path) -> None:
    with lost_while_it_hangs(tmp_path, "stop") as cluster:
        cluster.start(script="gil_job.py")
        assert_the_lost_process_was_ended(cluster)
        assert logged(cluster, "(it is stopped: SIGSTOP, or a debugger)")


def test_ctrl_c_after_a_failure_that_was_recovered_names_no_failed_job(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.kill_node("1")
        cluster.wait_step(8, generation=2)
        cluster.signal(LAUNCHER, signal.SIGINT)

        assert cluster.wait_exit(LAUNCHER) == 128 + signal.SIGINT
        assert logged(cluster, "asked to stop by SIGINT")
        assert not logged(cluster, "the job failed")


def test_a_launcher_in_the_background_is_found_after_a_step_of_the_wall_clock(tmp_path: Path) -> None:
    with LaunchedCluster(tmp_path, environment=HELD) as cluster:
        cluster.start("--join=False")
        assert cluster.wait_exit(LAUNCHER) == 0
        cluster.wait_step(3)
        note = cluster.logs / "agent.json"
        noted = json.loads(note.read_text())
        # A clock that was set by an hour moves what psutil reckons to be the start of every process by as much.
        note.write_text(json.dumps({**noted, "started_s": noted["started_s"] - 3600}))

        stop = [sys.executable, "-m", "recovery", "stop", str(cluster.logs)]
        stopped = subprocess.run(stop, check=False, timeout=300, capture_output=True, text=True)
        assert stopped.returncode == 0, stopped.stderr
        assert_nothing_left(cluster)


MISTAKEN = """
import recovery
from recovery.errors import UsageError

{enter}
    raise UsageError(field="train.py", reason="is wrong", next_step="Mend it.")
{leave}
"""


@pytest.mark.parametrize(
    ("enter", "leave"),
    [("session = recovery.init()\nif session:", ""), ("@recovery.run\ndef train(session):", "train()")],
    ids=["a script", "a function"],
)
def test_a_mistake_that_every_rank_makes_is_shown_once(tmp_path: Path, enter: str, leave: str) -> None:
    with LaunchedCluster(tmp_path) as cluster:
        (tmp_path / "mistaken.py").write_text(MISTAKEN.format(enter=enter, leave=leave))
        cluster.start(script="mistaken.py")
        assert cluster.wait_exit(LAUNCHER) == ROWS["USAGE"].exit_code, cluster.tails()
        said = cluster.log(LAUNCHER)
        assert said.count("USAGE: train.py: is wrong. Mend it.") == 1, said
        assert "Traceback" not in said
        assert re.search(
            r"^the job failed: worker_[01] start 1: exit code 64, for what is shown above$",
            said,
            re.MULTILINE,
        )
        assert_nothing_left(cluster)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("recovery.init()\nrecovery.init()\n", "was called a second time in this process"),
        (
            "@recovery.run\ndef train(session):\n    recovery.init()\n\n\ntrain()\n",
            "was called inside a function of @recovery.run, which has joined the job",
        ),
    ],
    ids=["a script", "a function"],
)
def test_a_second_init_is_no_end_of_training(tmp_path: Path, script: str, why: str) -> None:
    with LaunchedCluster(tmp_path, workers=1) as cluster:
        (tmp_path / "twice.py").write_text(f"import recovery\n\n{script}")
        cluster.start(script="twice.py")
        assert cluster.wait_exit(LAUNCHER) == ROWS["USAGE"].exit_code, cluster.tails()
        said = cluster.log(LAUNCHER)
        assert said.count(f"USAGE: recovery.init(): {why}.") == 1
        assert not cluster.events(EventKind.JOB_FINISHED)
        [failed] = cluster.events(EventKind.NODE_FAILED)
        assert why in failed.event.reason
        assert_nothing_left(cluster)


def test_an_exception_that_is_none_by_name_ends_a_job_as_a_mistake_does(tmp_path: Path) -> None:
    """torch.distributed.checkpoint's CheckpointException is such a one."""
    script = """
import recovery

class Gone(BaseException):
    pass

@recovery.run
def train(session):
    raise Gone("the file is gone")

train()
"""
    with LaunchedCluster(tmp_path, workers=1) as cluster:
        (tmp_path / "gone.py").write_text(script)
        cluster.start("--max_restarts=0", script="gone.py")

        assert cluster.wait_exit(LAUNCHER) == 1, cluster.tails()
        assert "Gone: the file is gone" in cluster.log_of("worker_0")
        assert not cluster.events(EventKind.JOB_FINISHED)
