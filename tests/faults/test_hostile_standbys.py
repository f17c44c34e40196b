"""Thousands of processes a second that claim to be standbys or successors of who is alive: nobody of the job notices."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from recovery.core.ids import NodeId
from recovery.core.records import EventKind
from recovery.store.reader import read_scheduler
from tests.faults.strangers import Hammer
from tests.faults.test_standby_networks import WINDOW_S, launch, start_scheduler, taken
from tests.faults.tiny_cluster import TinyCluster

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.alone]

WORKERS = 2
CLAIMS: tuple[tuple[str, dict[str, object], str], ...] = (
    ("stranger_1", {"standby": True}, "WORLD_FULL"),
    ("stranger_2", {"replaces": NodeId("worker_1")}, "NODE_ALIVE"),
    ("worker_1", {"standby": True}, "NODE_ALIVE"),
    ("standby_0", {"standby": True, "replaces": NodeId("worker_0")}, "NODE_ALIVE"),
)
PER_SECOND = 150
TIMES = 1_000
GROWTH_BYTES_MAX = 16 << 20
# With a token none of these claims is heard at all. A slow machine is not what makes a worker dial again.
ENVIRONMENT = {"MS_JOB_TOKEN": "off", "MS_NODE_TIMEOUT": "120", "MS_RECEIVE_MSG_TIMEOUT": "60"}


def hammer(cluster: TinyCluster, name: str, claims: dict[str, object]) -> Hammer:
    return Hammer(
        cluster.port, node=name, workers=WORKERS, servers=0, per_second=PER_SECOND, threads=4, **claims
    )


def test_thousands_of_claims_to_places_of_living_ids_take_none_and_cost_nothing(tmp_path: Path) -> None:
    with TinyCluster(tmp_path, workers=WORKERS, window_s=WINDOW_S, environment=ENVIRONMENT) as cluster:
        for name in (*cluster.names, "standby_0"):
            launch(cluster, name)
        start_scheduler(cluster, standbys=1)
        cluster.wait_step(15)
        scheduler = psutil.Process(cluster.processes["sched"].pid)
        with contextlib.ExitStack() as stack:
            hammers = [hammer(cluster, name, claims) for name, claims, _ in CLAIMS]
            for one in hammers:
                stack.enter_context(one)
            cluster.wait(lambda: all(one.count > PER_SECOND for one in hammers), "first answers")
            check_is_answered(cluster)
            # The first refusal of each is one, behind its answer.
            cluster.wait(lambda: refusals(cluster) == len(CLAIMS) + 1, "lines of the refusals")
            counted, before = sum(one.count for one in hammers), size(cluster, scheduler)

            def is_over() -> bool:
                check_is_answered(cluster)
                return sum(one.count for one in hammers) - counted >= TIMES

            cluster.wait(is_over, f"{TIMES} more claims")
            after = size(cluster, scheduler)
        print(
            f"{TIMES} more claims: {(after.memory_bytes - before.memory_bytes) >> 10} KiB more, rows {after.rows}, lines {len(after.lines)}"
        )
        for one, (name, _, code) in zip(hammers, CLAIMS, strict=True):
            assert set(one.answers) == {code}, f"{name}: {one.answers}"
        assert after.lines[len(before.lines) :] == [], "a claim is written once"
        assert after.rows == before.rows
        assert after.memory_bytes - before.memory_bytes < GROWTH_BYTES_MAX
        assert len(cluster.events(EventKind.NODE_ADMITTED)) == WORKERS + 1
        assert not cluster.events(EventKind.NODE_SUSPECTED)

        cluster.kill("worker_1")
        del cluster.processes["worker_1"]
        cluster.wait_step(20, generation=2)
        cluster.finish()
        assert taken(cluster) == {"worker_1": ("standby_0", 1)}


class Size(NamedTuple):
    """What thousands of claims might make grow."""

    rows: int
    lines: list[str]
    memory_bytes: int


def size(cluster: TinyCluster, scheduler: psutil.Process) -> Size:
    """Rows of nodes, and lines of the log that do not tell of training."""
    found = read_scheduler(cluster.directory / "recovery")
    lines = [line for line in cluster.log("sched").splitlines() if "event=checkpoint_committed" not in line]
    rows = len(found.nodes) + len(found.slots) + len(found.processes)
    return Size(rows, lines, scheduler.memory_info().rss)


def refusals(cluster: TinyCluster) -> int:
    return cluster.log("sched").count("event=node_refused")


def check_is_answered(cluster: TinyCluster) -> None:
    """A process whose id is alive has its answer on its first connection."""
    one = hammer(cluster, "worker_0", {})
    one.once(random.Random(1))
    assert one.answers == {"NODE_ALIVE": 1}, one.answers
