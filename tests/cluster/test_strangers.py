"""Who does not belong to the job, what does not belong on the wire, and a wire that breaks: the job trains on."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.cluster.undisturbed import Undisturbed
from tests.faults.fault_proxy import FaultProxy
from tests.transport.wire import HANDSHAKE, masked_frame, plain_socket

pytestmark = pytest.mark.cluster

HELD = {"JOB_HELD_STEP": "80"}
"""About the middle: the job does not end before the test has done to it what it is about."""


def visitor(cluster: Cluster, name: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process that is not to be counted among the job's."""
    member = cluster.processes.get(name)
    process = cluster.launch(name, **environment)
    if member is None:
        del cluster.processes[name]
    else:
        cluster.processes[name] = member
    return process


@pytest.mark.slow
def test_strangers_are_turned_away_by_name_and_the_job_trains_on(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, workers=2, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(5)

        turned_away = {
            78: ("WORLD_FULL", "worker_9", visitor(cluster, "worker_9")),
            74: ("NODE_ALIVE", "worker_1", visitor(cluster, "worker_1", MS_REJOIN="fail")),
            30: ("STORE_LOCKED", "sched", visitor(cluster, "sched")),
            50: ("PORT_IN_USE", "sched", visitor(cluster, "sched", MS_RECOVERY_PATH="another")),
        }
        for exit_code, (code, name, process) in turned_away.items():
            assert process.wait(120) == exit_code, cluster.tails()
            assert code in cluster.log(name)

        cluster.go_on()
        cluster.wait_end()
        assert not cluster.events(EventKind.GENERATION_INTERRUPTED)
        cluster.check_same_as(undisturbed(workers=2))


def test_garbage_and_oversized_frames_on_the_port_cost_nothing(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    noise = random.Random(7)
    with Cluster(tmp_path, workers=2, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(79)

        sockets = [plain_socket(cluster.port) for _ in range(20)]
        for number, stranger in enumerate(sockets):
            if number % 2:
                stranger.sendall(noise.randbytes(5_000))
            else:
                # More than 64 KiB.
                stranger.sendall(HANDSHAKE + masked_frame(noise.randbytes(70_000)))
        cluster.go_on()
        cluster.wait_step(100)
        for stranger in sockets:
            stranger.close()

        cluster.wait_end()
        assert not cluster.events(EventKind.GENERATION_INTERRUPTED)
        cluster.check_same_as(undisturbed(workers=2))


def test_dropped_connections_of_a_living_worker_cost_nothing(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    environment = {**HELD, "MS_RECONNECT_GRACE": "60"}
    with (
        Cluster(tmp_path, workers=2, environment=environment) as cluster,
        FaultProxy(cluster.port) as proxy,
    ):
        cluster.launch("sched")
        cluster.launch("worker_0")
        cluster.launch("worker_1", MS_SCHED_PORT=str(proxy.port))
        for cut in range(1, 4):
            cluster.wait_step(25 * cut)
            proxy.cut()
            cluster.wait_event(EventKind.NODE_RESUMED, "worker_1", count=cut)

        cluster.go_on()
        cluster.wait_end()
        assert proxy.accepted >= 4, "the wire was not the one that was used"
        assert not cluster.events(EventKind.NODE_LOST)
        assert {line["generation"] for line in checker.lines(tmp_path / "steps.jsonl")} == {1}
        cluster.check_same_as(undisturbed(workers=2))


def test_another_world_size_than_the_stored_one_is_refused_and_loses_nothing(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Cluster(tmp_path, workers=2, environment=HELD) as cluster:
        cluster.start()
        cluster.wait_step(25)
        cluster.kill("sched", *cluster.names)

        wrong = visitor(cluster, "sched", MS_WORKER_NUM="3")
        assert wrong.wait(120) == 73
        assert "MS_WORKER_NUM=3" in cluster.log("sched")
        assert "has 2" in cluster.log("sched")

        cluster.start()
        cluster.go_on()
        cluster.wait_end()
        assert (cluster.events(EventKind.PLAN_MADE)[-1].event.step or 0) >= 10, "training began again"
        cluster.check_same_as(undisturbed(workers=2))
