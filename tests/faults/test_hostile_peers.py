"""Thousands of strangers on the scheduler's port while eight workers train: nobody of the job notices."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
from pathlib import Path

import psutil
import pytest

from recovery.core.principals import PrincipalKind
from recovery.core.records import EventKind
from recovery.transport import inspection_client
from recovery.transport.access import Access
from recovery.transport.job_token import Caller, JobToken
from tests.cluster.small_cluster import SmallCluster
from tests.faults.strangers import Dripper, Garbage, Hammer, silent
from tests.transport.wire import HOST

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.alone]

WORKERS = 8
SILENT = 2_000
TRIES = 2_000
"""Registrations that the flood has made when it ends."""
ANSWERS_MIN = 20
MEMORY_GROWTH_BYTES_MAX = 64 << 20


def check_is_answered(port: int, token: str | None) -> None:
    """A well-behaved process has its answer on its first connection: with the token a view, else a refusal (an id that is alive)."""
    if token is not None:
        access = Access(Caller(PrincipalKind.VIEWER, "", JobToken(token)))
        assert asyncio.run(inspection_client.ask(HOST, port, "/status", access=access))["state"] == "running"
        return
    one = Hammer(port, node="worker_0", workers=WORKERS, servers=0, per_second=1)
    one.once(random.Random(1))
    assert one.answers == {"NODE_ALIVE": 1}, one.answers


@pytest.mark.parametrize("token", [None, "a-token-of-this-test"], ids=["trusted", "token"])
def test_two_thousand_strangers_disturb_neither_training_nor_a_good_worker(
    tmp_path: Path, token: str | None
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    environment = {
        "JOB_STEP_MS": "250",
        "JOB_HELD_STEP": "50",
        "MS_JOB_TOKEN": token or "off",
        # A slow machine is not what makes a worker dial again.
        "MS_NODE_TIMEOUT": "120",
        "MS_RECEIVE_MSG_TIMEOUT": "60",
    }
    with SmallCluster(tmp_path, workers=WORKERS, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(3)
        scheduler = psutil.Process(cluster.processes["sched"].pid)
        memory_before = scheduler.memory_info().rss
        limit, _ = scheduler.rlimit(psutil.RLIMIT_NOFILE)

        with (
            contextlib.ExitStack() as sockets,
            Hammer(cluster.port, node="worker_1", workers=WORKERS, servers=0, per_second=1_000) as hammer,
            Garbage(cluster.port, per_second=50),
            Dripper(cluster.port, 50, "127.0.0.4"),
        ):
            for each in silent(cluster.port, SILENT, "127.0.0.5"):
                sockets.enter_context(each)
            tried, open_files = hammer.count, list[int]()

            def is_over() -> bool:
                check_is_answered(cluster.port, token)
                open_files.append(scheduler.num_fds())
                return hammer.count - tried >= TRIES and len(open_files) >= ANSWERS_MIN

            cluster.wait(is_over, "end of the flood")
        print(
            f"{SILENT} silent, {hammer.count - tried} registrations, {len(open_files)} answers: "
            f"{max(open_files)} descriptors, {(scheduler.memory_info().rss - memory_before) >> 20} MiB more"
        )

        if token is not None:
            assert set(hammer.answers) <= {"401", "closed"}, hammer.answers
        assert max(open_files) < limit / 2
        assert scheduler.memory_info().rss - memory_before < MEMORY_GROWTH_BYTES_MAX
        cluster.go_on()
        cluster.wait_end()
        assert not cluster.events(EventKind.NODE_SUSPECTED)
        assert cluster.generations() == {1}
        cluster.check_result()
