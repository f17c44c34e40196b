"""What a network does to a worker's connection: a fault shorter than the lease costs nothing, a longer one costs one rollback.

Two limits count. Who is *silent* is believed alive for its lease (MS_NODE_TIMEOUT). Whose connection is *closed* has the reconnect
grace (MS_RECONNECT_GRACE): a kernel that closes a dead process's socket says so at once, and recovery need not wait for the lease.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery import clock
from recovery.core.records import EventKind
from tests.cluster.secured import with_tls
from tests.faults.fault_proxy import BOTH, DOWN, UP, FaultProxy
from tests.faults.tiny_cluster import TinyCluster

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

PATIENT = {
    "MS_NODE_TIMEOUT": "60",
    "MS_RECEIVE_MSG_TIMEOUT": "2",
    "MS_RETRY_INTERVAL_LOWER": "1",
    "MS_RETRY_INTERVAL_UPPER": "1",
    "MS_RECONNECT_GRACE": "20",
}
"""A lease and a grace well above the faults; a worker dials again after two seconds of silence."""

IMPATIENT = {**PATIENT, "MS_NODE_TIMEOUT": "6", "MS_RECONNECT_GRACE": "5"}
"""Where their end is waited for. Long enough for a busy machine to answer in, or there is more than one rollback."""
BOTH_WAYS = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
_FLAPS = 7
_LINES_PER_FLAP = 4
"""Lost and found, on either side."""


@contextlib.contextmanager
def wired(
    directory: Path, environment: dict[str, str], *, workers: int, window_s: float = 1.0, tls: bool = False
) -> Iterator[tuple[TinyCluster, list[FaultProxy]]]:
    """A cluster that trains, every worker through a wire of its own."""
    environment = {**environment, **(with_tls(directory) if tls else {})}
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            TinyCluster(directory, workers=workers, window_s=window_s, environment=environment)
        )
        wires = [stack.enter_context(FaultProxy(cluster.port)) for _ in range(workers)]
        cluster.launch("sched")
        for name, wire in zip(cluster.names, wires, strict=True):
            cluster.launch(name, MS_SCHED_PORT=str(wire.port))
        cluster.wait_step(15)
        yield cluster, wires


def pass_time(seconds: float) -> None:
    """The fault lasts so long; there is nothing to wait for but time itself."""
    threading.Event().wait(seconds)


@BOTH_WAYS
def test_faults_shorter_than_the_lease_resume_without_a_rollback(tmp_path: Path, *, tls: bool) -> None:
    with wired(tmp_path, PATIENT, workers=4, tls=tls) as (cluster, wires):
        before = cluster.pids()
        # Longer than the worker waits for a message: it dials again, into silence.
        wires[0].hold(*BOTH)
        wires[1].hold(UP)
        wires[2].hold(DOWN)
        wires[3].drip(16)
        wires[3].delay(0.05)
        pass_time(1.0)
        wires[2].clear()
        for wire in wires[:2]:
            cluster.wait(functools.partial(_has_dialled_again, wire), "dial into the silence")
        # Training does not wait for the network.
        cluster.wait_step(cluster.step() + 30)
        wires[0].clear()
        wires[1].clear()
        for name in ("worker_0", "worker_1"):
            cluster.wait_event(EventKind.NODE_RESUMED, name)
        wires[3].clear()

        wires[2].cut_in_frame(3)
        wires[3].half_close(UP)
        for name in ("worker_2", "worker_3"):
            cluster.wait_event(EventKind.NODE_RESUMED, name)
        wires[3].half_close(DOWN)
        cluster.wait_event(EventKind.NODE_RESUMED, "worker_3", count=2)

        assert cluster.pids() == before
        cluster.finish()
        assert not cluster.events(EventKind.NODE_LOST)
        assert cluster.generations() == {1}
        assert all(wire.accepted >= 2 for wire in wires), "a fault missed its connection"


def test_a_flapping_network_neither_restarts_the_world_nor_floods_the_log(tmp_path: Path) -> None:
    # Silence alone makes nobody dial: each flap is one connection that closed.
    environment = {**PATIENT, "MS_RECEIVE_MSG_TIMEOUT": "25"}
    with wired(tmp_path, environment, workers=3) as (cluster, wires):
        before, lines_before = cluster.pids(), _log_lines(cluster)
        for flap in range(_FLAPS):
            wires[0].hold(*BOTH)
            wires[1].down()
            pass_time(1.0)
            wires[0].clear()
            wires[1].clear()
            cluster.wait_event(EventKind.NODE_RESUMED, "worker_1", count=flap + 1)

        assert cluster.pids() == before
        cluster.finish()
        assert not cluster.events(EventKind.NODE_LOST)
        assert cluster.generations() == {1}
        # Ten are for the end's own lines.
        allowed = 10 + _LINES_PER_FLAP * _FLAPS
        for name, lines in _log_lines(cluster).items():
            assert lines - lines_before[name] <= allowed, f"{name} wrote {lines} lines:\n{cluster.log(name)}"


@BOTH_WAYS
def test_a_partition_longer_than_the_lease_costs_one_rollback_and_no_process(
    tmp_path: Path, *, tls: bool
) -> None:
    with wired(tmp_path, IMPATIENT, workers=3, tls=tls) as (cluster, wires):
        before = cluster.pids()
        for wire in wires:
            wire.hold(*BOTH)
        cluster.wait_event(EventKind.NODE_LOST, count=3)
        for wire in wires:
            wire.clear()
        cluster.wait_step(20, generation=2)

        assert cluster.pids() == before
        cluster.finish()
        assert cluster.plan_count() == 2, "more than one rollback"
        assert cluster.generations() == {1, 2}
        assert len(cluster.events(EventKind.NODE_ADMITTED)) == 3, "a living process was admitted again"


def test_a_node_that_was_cut_off_and_replaced_is_fenced_when_it_comes_back(tmp_path: Path) -> None:
    window_s = 16.0
    with wired(tmp_path, IMPATIENT, workers=3, window_s=window_s) as (cluster, wires):
        old = cluster.processes["worker_1"]
        wires[1].hold(*BOTH)
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        launched_ms = clock.wall_ms()
        cluster.launch("worker_1")
        cluster.wait_step(20, generation=2)
        [refused] = cluster.events(EventKind.NODE_REFUSED, "worker_1")
        said = re.search(
            r"^REJOIN_WINDOW: .* last heard (\S+) s ago and may return in (\S+) s", refused.event.reason or ""
        )
        assert said is not None, refused.event.reason
        heard_s, left_s = map(float, said.groups())
        assert abs(heard_s + left_s - window_s) < 0.2, "both are rounded to a tenth"
        admitted = cluster.events(EventKind.NODE_ADMITTED, "worker_1")[-1]
        assert admitted.wall_ms >= launched_ms + 1000 * (left_s - 0.1), "let in within its window"
        assert admitted.event.incarnation == 2

        wires[1].clear()
        cluster.wait(lambda: old.poll() is not None, "end of the one that was replaced")
        assert old.returncode == 76
        cluster.finish()
        assert cluster.plan_count() == 2, "more than one rollback"


def test_a_worker_that_hears_nothing_for_long_comes_back_with_one_rollback(tmp_path: Path) -> None:
    """Its words still arrive, but it cannot know: it disconnects and dials, and its dial is not answered either."""
    with wired(tmp_path, IMPATIENT, workers=2) as (cluster, wires):
        before = cluster.pids()
        wires[0].hold(DOWN)
        cluster.wait_event(EventKind.NODE_LOST, "worker_0")
        wires[0].clear()
        cluster.wait_step(20, generation=2)

        assert cluster.pids() == before
        cluster.finish()
        assert cluster.plan_count() == 2, "more than one rollback"


def _has_dialled_again(wire: FaultProxy) -> bool:
    return wire.accepted >= 2


def _log_lines(cluster: TinyCluster) -> dict[str, int]:
    """Lines that each process has printed, those about training itself not counted."""
    return {
        name: sum("event=checkpoint_committed" not in line for line in cluster.log(name).splitlines())
        for name in (*cluster.names, "sched")
    }
