"""Networks that fail where standbys wait: a rank that was taken over has one holder, whoever comes back."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.checkpoint import manifest
from recovery.core.records import EventKind
from tests.cluster import checker, slow_save
from tests.cluster.harness import Cluster
from tests.cluster.small_cluster import SCRIPT, SmallCluster
from tests.faults.fault_proxy import BOTH, FaultProxy
from tests.faults.hosts import BOTH as BOTH_WAYS
from tests.faults.hosts import Host, host
from tests.faults.test_network_faults import IMPATIENT, PATIENT, pass_time
from tests.faults.tiny_cluster import TinyCluster

__all__ = ["host"]

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

WINDOW_S = 600.0
"""Of a lost id. Nobody waits for it where a standby is."""
FENCED = 76
MANIFEST = "small-1_10.json"


def launch(cluster: Cluster, name: str, **environment: str) -> None:
    """Start a worker, or a standby by its name."""
    cluster.launch(name, MS_STANDBY=str(int(name.startswith("standby"))), **environment)


@contextlib.contextmanager
def wired(cluster: Cluster, name: str, **environment: str) -> Iterator[FaultProxy]:
    """Start a process behind a wire of its own."""
    with FaultProxy(cluster.port) as wire:
        launch(cluster, name, MS_SCHED_PORT=str(wire.port), **environment)
        yield wire


def start_scheduler(cluster: Cluster, *, standbys: int) -> None:
    """Start it, and wait until the standbys wait."""
    cluster.launch("sched", MS_STANDBY_NUM=str(standbys))
    for number in range(standbys):
        cluster.wait_event(EventKind.NODE_READY, f"standby_{number}")


def taken(cluster: Cluster) -> dict[str, tuple[str | None, int | None]]:
    """By who lost its rank: who took which."""
    events = [stored.event for stored in cluster.events(EventKind.RANK_TAKEN_OVER)]
    return {event.details: (event.node_id, event.rank) for event in events}


def wait_fenced(cluster: Cluster, name: str) -> None:
    """Its process ends, since another one has its rank; nobody starts it again."""
    process = cluster.processes.pop(name)
    cluster.wait(lambda: process.poll() is not None, f"end of {name}")
    assert process.returncode == FENCED, cluster.tails()


def test_a_holder_that_was_cut_off_and_whose_rank_was_taken_over_is_fenced(tmp_path: Path) -> None:
    with (
        TinyCluster(tmp_path, workers=2, window_s=WINDOW_S, environment=IMPATIENT) as cluster,
        wired(cluster, "worker_1") as wire,
    ):
        for name in ("worker_0", "standby_0"):
            launch(cluster, name)
        start_scheduler(cluster, standbys=1)
        cluster.wait_step(15)
        wire.hold(*BOTH)
        cluster.wait_step(20, generation=2)
        assert taken(cluster) == {"worker_1": ("standby_0", 1)}

        wire.clear()
        wait_fenced(cluster, "worker_1")
        cluster.finish()
        assert cluster.plan_count() == 2, "who came back cost a rollback"


SAVED_FIRST = pytest.mark.parametrize("standby_first", [False, True], ids=["the one cut off", "the standby"])


@SAVED_FIRST
def test_a_save_of_a_holder_that_is_cut_off_counts_for_nothing(
    tmp_path: Path, *, standby_first: bool
) -> None:
    """Both save step 10 under one name: the one that lost its rank in generation 1, its successor in generation 2."""
    with SmallCluster(tmp_path, window_s=WINDOW_S, environment=IMPATIENT) as cluster:
        shutil.copy(slow_save.__file__, tmp_path / SCRIPT)
        launch(cluster, "worker_0", JOB_HELD_STEP="14")
        launch(cluster, "standby_0", JOB_HELD_STEP="12" if standby_first else "7")
        with wired(cluster, "worker_1", JOB_HOLD_SAVE="10", JOB_HELD_STEP="14") as wire:
            start_scheduler(cluster, standbys=1)
            cluster.wait((tmp_path / "saving").exists, "save of step 10")
            wire.hold(*BOTH)
            _save_in_turn(cluster, standby_first=standby_first)
            wire.clear()
            wait_fenced(cluster, "worker_1")
        cluster.go_on()
        cluster.wait_end()
        assert taken(cluster) == {"worker_1": ("standby_0", 1)}
        committed = [stored.event for stored in cluster.events(EventKind.CHECKPOINT_COMMITTED)]
        assert [event.generation for event in committed if event.step == 10] == [2]
        cluster.check_result()


def _save_in_turn(cluster: Cluster, *, standby_first: bool) -> None:
    """Let the one that is cut off finish its save once the standby has done what it may."""
    last = 11 if standby_first else 6
    cluster.wait(lambda: _steps_of_rank_1(cluster) >= last, "last step before the standby is held")
    found = cluster.directory / "ckpt/1" / MANIFEST
    if standby_first:
        cluster.wait(found.exists, "save of the standby")
    (cluster.directory / "save_on").touch()
    if standby_first:
        cluster.wait(lambda: "checkpoint_not_saved step=10" in cluster.log("worker_1"), "refusal")
    else:
        cluster.wait(found.exists, "save of the one that is cut off")
    assert manifest.read_manifest(found).generation == (2 if standby_first else 1)


def _steps_of_rank_1(cluster: Cluster) -> int:
    """The newest in generation 2."""
    lines = checker.lines(cluster.directory / "steps.jsonl")
    return max((line["step"] for line in lines if (line["generation"], line["rank"]) == (2, 1)), default=0)


def test_a_standby_behind_a_bad_wire_takes_a_rank_and_trains_with_it(tmp_path: Path) -> None:
    with (
        TinyCluster(tmp_path, workers=2, window_s=WINDOW_S, environment=PATIENT) as cluster,
        wired(cluster, "standby_0") as wire,
    ):
        for name in cluster.names:
            launch(cluster, name)
        start_scheduler(cluster, standbys=1)
        cluster.wait_step(15)
        # Cut off before the offer, which it hears late and in pieces; its answer breaks in the middle.
        wire.hold(*BOTH)
        cluster.kill("worker_1")
        del cluster.processes["worker_1"]
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        wire.clear()
        # A dial has 1,200 bytes instead of 450, since both sides prove that they know the token: it must be through within the reconnect grace.
        wire.drip(64)
        wire.delay(0.02)
        wire.cut_in_frame(8)
        for _ in range(2):
            pass_time(0.4)
            wire.cut()
        cluster.wait_step(20, generation=2)

        wire.cut()
        resumed = len(cluster.events(EventKind.NODE_RESUMED, "standby_0"))
        cluster.wait_event(EventKind.NODE_RESUMED, "standby_0", count=resumed or 1)
        wire.clear()
        cluster.finish()
        assert taken(cluster) == {"worker_1": ("standby_0", 1)}
        assert len(cluster.events(EventKind.RANK_TAKEN_OVER)) == 1
        assert not cluster.events(EventKind.NODE_LOST, "standby_0")
        assert wire.accepted >= 3, "a fault missed its connection"


def test_half_of_the_job_cut_off_with_a_standby_of_its_own_leads_to_no_rank_twice(
    tmp_path: Path, host: Host
) -> None:
    """Two ranks are lost and one standby is here: it takes one, and the other has its holder again when the packets go through."""
    environment = {**IMPATIENT, "MS_SCHED_HOST": host.scheduler}
    there = ("worker_2", "worker_3", "standby_1")
    with TinyCluster(tmp_path, workers=4, window_s=WINDOW_S, environment=environment) as cluster:
        cluster.started_by.update(dict.fromkeys(there, host.prefix))
        for name in (*cluster.names, "standby_0", "standby_1"):
            launch(cluster, name)
        start_scheduler(cluster, standbys=2)
        cluster.wait_step(15)
        host.cut(*BOTH_WAYS)
        cluster.wait_event(EventKind.RANK_TAKEN_OVER, "standby_0")
        for name in there:
            cluster.wait_event(EventKind.NODE_LOST, name)
        [(fenced, (_, rank))] = taken(cluster).items()
        assert (fenced, rank) in (("worker_2", 2), ("worker_3", 3))

        host.reconnect()
        wait_fenced(cluster, fenced)
        cluster.wait_step(20, generation=2)
        # The other one comes back, unless the standby that was cut off as well comes sooner, and has its rank then.
        changed = taken(cluster)
        other, others_rank = ("worker_3", 3) if rank == 2 else ("worker_2", 2)
        assert changed in (
            {fenced: ("standby_0", rank)},
            {fenced: ("standby_0", rank), other: ("standby_1", others_rank)},
        )
        if other in changed:
            wait_fenced(cluster, other)
        cluster.finish()
        assert taken(cluster) == changed, "a rank has changed hands that need not"
        assert cluster.plan_count() == 2, "more than one rollback"
