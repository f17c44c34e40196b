"""A job that has finished ends with 0 once its last checkpoint is in object storage, and by name where it does not come there."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.objects.store import ObjectStore
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.small_cluster import LAST_STEP, SCRIPT
from tests.faults.fault_proxy import BOTH, FaultProxy
from tests.objects.conftest import opened_for_tests
from tests.objects.test_disks_lost import UPLOAD_NOT_FINISHED, committed_there, environment_of

pytestmark = pytest.mark.cluster

# A spawned script has its end where nobody runs it: in a handler of atexit.
FACES = pytest.mark.parametrize("face", ["init", "init spawn", "run"])
HELD, SAVED = 56, 55
AT_EXIT = """import atexit
import logging.handlers

atexit.register(print, "the handler of the script")
script = logging.getLogger("script")
script.propagate = False
script.addHandler(logging.handlers.MemoryHandler(9, target=logging.StreamHandler()))
script.warning("kept until logging.shutdown")


def value_after("""
"""Registered by a script behind its imports; that of logging is there before any of the engine's."""
EXPORT = """import multiprocessing.util


def export():
    while not (HERE / "export").exists():
        time.sleep(0.01)
    # Behind the end of a parent that does not wait.
    time.sleep(0.5)
    (HERE / f"exported_{os.environ['MS_NODE_ID']}").touch()


import recovery
"""
"""A process of the script's own. Its import before the engine's, as torch's, puts the wait for it behind all that the engine has registered."""
SIGNALLED = """

def signalled(frame, event, arg):
    if event == "return" and frame.f_code is TrainingControl.await_end.__code__:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGTERM)


import recovery
from recovery.worker.training_control import TrainingControl

sys.setprofile(signalled)
"""
"""SIGTERM comes as the job has finished, and nobody waits for the upload yet."""


@contextlib.contextmanager
def at_the_last_step(
    tmp_path: Path, address: str, face: str, end: str = "", begin: str = EXPORT
) -> Iterator[tuple[LaunchedCluster, FaultProxy, ObjectStore]]:
    """A job that has one checkpoint left to send, over a wire with weather."""
    with FaultProxy(int(address.rpartition(":")[2])) as proxy:
        store = opened_for_tests(address, tmp_path)
        environment = environment_of(f"http://127.0.0.1:{proxy.port}", store.url)
        name, _, method = face.partition(" ")
        environment |= {"JOB_FACE": name, "JOB_HELD_STEP": str(HELD)}
        with LaunchedCluster(tmp_path, environment=environment) as cluster:
            script = tmp_path / SCRIPT
            text = script.read_text().replace("def value_after(", AT_EXIT, 1)
            script.write_text(text.replace("import recovery\n", begin, 1) + end)
            cluster.start(f"--start_method={method or 'fork'}")
            cluster.wait(lambda: SAVED in committed_there(store), "commit in the store")
            yield cluster, proxy, store


def wait_in_logs(cluster: LaunchedCluster, said: str) -> None:
    """Until both workers have said it, or the job is over without it."""

    def is_said() -> bool:
        return all(said in cluster.log_of(name) for name in cluster.names)

    cluster.wait(lambda: is_said() or cluster.processes[LAUNCHER].poll() is not None, said)
    assert is_said(), cluster.tails()


def trained_once_to_its_end(cluster: LaunchedCluster) -> None:
    cluster.check_result()
    assert len(cluster.events(EventKind.PLAN_MADE)) == 1
    for name in cluster.names:
        assert "start 2" not in cluster.log(LAUNCHER)
        assert cluster.log_of(name).count("the handler of the script") == 1
        assert cluster.log_of(name).count("kept until logging.shutdown") == 1


@FACES
def test_a_job_waits_for_its_last_upload(tmp_path: Path, s3_address: str, face: str) -> None:
    with at_the_last_step(tmp_path, s3_address, face) as (cluster, proxy, store):
        proxy.hold(*BOTH)
        cluster.go_on()
        wait_in_logs(cluster, f"event=upload_awaited step={LAST_STEP} within_s=60 ")
        assert LAST_STEP not in committed_there(store)
        proxy.clear()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        assert LAST_STEP in committed_there(store)
        trained_once_to_its_end(cluster)


@FACES
def test_a_last_upload_that_fails_is_the_exit_code_and_starts_nothing_again(
    tmp_path: Path, s3_address: str, face: str
) -> None:
    with at_the_last_step(tmp_path, s3_address, face) as (cluster, proxy, store):
        proxy.down()
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == UPLOAD_NOT_FINISHED, cluster.tails()
        assert LAST_STEP not in committed_there(store)
        trained_once_to_its_end(cluster)
        for name in cluster.names:
            assert is_named(cluster, name, "CHECKPOINT_")


EXITS = "\n    sys.exit(3)\n"
EXPORTS = """
    multiprocessing.get_context("fork").Process(target=export).start()
"""


@FACES
def test_a_process_that_a_script_has_started_comes_to_its_end(
    tmp_path: Path, s3_address: str, face: str
) -> None:
    with at_the_last_step(tmp_path, s3_address, face, EXPORTS) as (cluster, proxy, store):
        proxy.down()
        cluster.go_on()
        wait_in_logs(cluster, "event=upload_not_finished")
        (tmp_path / "export").touch()
        assert cluster.wait_exit(LAUNCHER) == UPLOAD_NOT_FINISHED, cluster.tails()
        assert {path.name for path in tmp_path.glob("exported_*")} == {"exported_0", "exported_1"}
        assert LAST_STEP not in committed_there(store)


@FACES
def test_a_script_that_exits_by_itself_behind_its_training_keeps_its_exit_code(
    tmp_path: Path, s3_address: str, face: str
) -> None:
    with at_the_last_step(tmp_path, s3_address, face, EXITS) as (cluster, proxy, store):
        proxy.down()
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 3, cluster.tails()
        assert LAST_STEP not in committed_there(store)
        trained_once_to_its_end(cluster)


@FACES
def test_a_signal_ends_the_wait_by_the_same_exit_code(tmp_path: Path, s3_address: str, face: str) -> None:
    with at_the_last_step(tmp_path, s3_address, face) as (cluster, proxy, store):
        proxy.hold(*BOTH)
        cluster.go_on()
        wait_in_logs(cluster, f"event=upload_awaited step={LAST_STEP} within_s=60 ")
        os.kill(cluster.pid_of("0"), signal.SIGTERM)
        os.kill(cluster.pid_of("1"), signal.SIGINT)
        assert cluster.wait_exit(LAUNCHER) == UPLOAD_NOT_FINISHED, cluster.tails()
        trained_once_to_its_end(cluster)
        assert is_named(cluster, "worker_0", "SIGTERM has ended the wait for it.")
        assert is_named(cluster, "worker_1", "SIGINT has ended the wait for it.")
        assert LAST_STEP not in committed_there(store)


@FACES
def test_a_signal_that_comes_just_before_the_wait_ends_it(tmp_path: Path, s3_address: str, face: str) -> None:
    with at_the_last_step(tmp_path, s3_address, face, begin=SIGNALLED) as (cluster, proxy, store):
        proxy.hold(*BOTH)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == UPLOAD_NOT_FINISHED, cluster.tails()
        trained_once_to_its_end(cluster)
        for name in cluster.names:
            assert is_named(cluster, name, "SIGTERM has ended the wait for it.")
            assert "event=upload_awaited" not in cluster.log_of(name)
        assert LAST_STEP not in committed_there(store)


def is_named(cluster: LaunchedCluster, name: str, reason: str) -> bool:
    """Does the process's last line say what is not in the storage, why, and where it lies?"""
    [line] = [line for line in cluster.log_of(name).splitlines() if "event=exit " in line]
    place = cluster.directory / "ckpt" / name.removeprefix("worker_")
    return (
        f"event=exit code={UPLOAD_NOT_FINISHED} UPLOAD_NOT_FINISHED: training is done" in line
        and f"(step {LAST_STEP}) is not in s3://" in line
        and reason in line
        and f"This rank's part of it is {place}/" in line
    )
