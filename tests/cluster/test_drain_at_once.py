"""Departures that come together with something else: another departure, a death, a scheduler that is gone. Real processes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from recovery.core.principals import PrincipalKind
from recovery.core.records import EventKind
from recovery.store.job_token_file import stored
from recovery.transport import inspection_client
from recovery.transport.access import Access
from recovery.transport.job_token import Caller, JobToken
from tests.cluster.inspected import run
from tests.cluster.small_cluster import SmallCluster
from tests.cluster.test_drain import HELD, PATIENT, TERMINATED, check_handed_over, outcomes, steps_lost
from tests.cluster.test_standbys import start_with_standbys
from tests.transport.wire import HOST

pytestmark = pytest.mark.cluster

HELD_UP = {**PATIENT, "JOB_HELD_STEP": str(HELD)}


def departing(cluster: SmallCluster) -> list[str]:
    """Whose ranks are to be handed over, as the scheduler knows it now."""
    token = JobToken.of(stored(cluster.directory / "recovery"))
    access = Access(Caller(PrincipalKind.VIEWER, "", token))
    found = asyncio.run(inspection_client.ask(HOST, cluster.port, "/drain", access=access))
    return list(found.get("nodes", ()))


def logs(cluster: SmallCluster) -> str:
    """What the two that depart have said."""
    return cluster.log("worker_1") + cluster.log("worker_2")


def test_two_signals_and_two_standbys_lose_no_step(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, workers=3, window_s=30, environment=HELD_UP) as cluster:
        start_with_standbys(cluster, 2)
        cluster.wait_step(HELD - 1)
        cluster.signal("worker_1", signal.SIGTERM)
        cluster.signal("worker_2", signal.SIGTERM)
        cluster.wait(lambda: departing(cluster) == ["worker_1", "worker_2"], "both departures")
        cluster.go_on()
        assert cluster.wait_exit("worker_2") == TERMINATED
        del cluster.processes["worker_2"]
        check_handed_over(cluster, "worker_1")
        cluster.check_result()
        assert len(cluster.events(EventKind.RANK_TAKEN_OVER)) == 2


def test_two_signals_and_one_standby_end_both_and_one_rank_waits_for_its_process(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, workers=3, environment=HELD_UP) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(HELD - 1)
        for name in ("worker_1", "worker_2"):
            cluster.signal(name, signal.SIGTERM)
        cluster.wait(lambda: departing(cluster) == ["worker_1", "worker_2"], "both departures")
        cluster.go_on()
        for name in ("worker_1", "worker_2"):
            assert cluster.wait_exit(name) == TERMINATED
        assert "2 ranks need a standby each, and there are 1" in logs(cluster)
        cluster.wait_event(EventKind.RANK_TAKEN_OVER)
        [taken] = cluster.events(EventKind.RANK_TAKEN_OVER)
        other = {"worker_1": "worker_2", "worker_2": "worker_1"}[taken.event.details]
        del cluster.processes[taken.event.details]
        cluster.launch(other)
        cluster.wait_end()
        cluster.check_result()


def test_host_without_another_standby_keeps_its_ranks_and_says_why(tmp_path: Path) -> None:
    """The standby that is ready would go with the host."""
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "7"}) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(6)
        refused = run("drain", str(tmp_path / "recovery"), "127.0.0.1")
        assert refused.returncode == 66
        assert refused.stderr.startswith(
            "NOT_HANDED_OVER: 127.0.0.1: not handed over: no standby is ready. "
        ), refused.stderr
        assert not cluster.events(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()
        assert steps_lost(cluster) == 0


@pytest.mark.parametrize("face", ["run", "init"])
def test_who_is_asked_to_end_ends_when_another_dies_in_the_middle(tmp_path: Path, face: str) -> None:
    """A script replaces itself when its generation ends: the program that follows would know of no signal."""
    environment = {**HELD_UP, "JOB_FACE": face, "MS_STANDBY_NUM": "1"}
    with SmallCluster(tmp_path, window_s=0.5, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(HELD - 1)
        cluster.signal("worker_1", signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.kill("worker_0")
        ended = cluster.wait_exit("worker_1")
        assert ended == (TERMINATED if face == "run" else -signal.SIGTERM), cluster.tails()
        del cluster.processes["worker_1"]
        cluster.go_on()
        for name in ("worker_0", "worker_1"):
            cluster.launch(name)
        cluster.wait_end()
        cluster.check_result()
        assert not any("no step is lost" in outcome for outcome in outcomes(cluster))
