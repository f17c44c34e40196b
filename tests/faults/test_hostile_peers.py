"""Thousands of strangers on the scheduler's port while eight workers train: nobody of the job notices."""

from __future__ import annotations

import contextlib
import random
import resource
import time
from pathlib import Path

import psutil
import pytest

from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster
from tests.faults.strangers import Dripper, Garbage, Hammer, silent

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.alone]

WORKERS = 8
SILENT = 2_000
MEMORY_GROWTH_BYTES_MAX = 64 << 20
ANSWER_S_MAX = 1.0


def answer_s(port: int) -> float:
    """How long a well-behaved process waits for its answer (an id that is alive: refused, with that reason)."""
    begun = time.monotonic()
    one = Hammer(port, node="worker_0", workers=WORKERS, servers=0, per_second=1)
    one.once(random.Random(1))
    assert one.answers["NODE_ALIVE"] == 1, one.answers
    return time.monotonic() - begun


def test_two_thousand_strangers_disturb_neither_training_nor_a_good_worker(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    with SmallCluster(
        tmp_path, workers=WORKERS, environment={"JOB_STEP_MS": "250", "MS_JOB_TOKEN": "off"}
    ) as cluster:
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
            begun, tried = time.monotonic(), hammer.count
            waits, open_files = [], []
            while time.monotonic() - begun < 6:
                waits.append(answer_s(cluster.port))
                open_files.append(scheduler.num_fds())
                time.sleep(0.2)
            per_second = (hammer.count - tried) / (time.monotonic() - begun)
        print(
            f"{SILENT} silent, {per_second:.0f} registrations a second: worst answer {max(waits) * 1000:.0f} ms of {len(waits)}, "
            f"{max(open_files)} descriptors, {(scheduler.memory_info().rss - memory_before) >> 20} MiB more"
        )

        assert max(waits) < ANSWER_S_MAX
        assert max(open_files) < limit / 2
        assert scheduler.memory_info().rss - memory_before < MEMORY_GROWTH_BYTES_MAX
        cluster.wait_end()
        assert not cluster.events(EventKind.NODE_SUSPECTED)
        assert cluster.generations() == {1}
        cluster.check_result()
