"""SIGTERM of a worker where a standby is ready: the rank goes on from the very step, in another process. Real processes."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster import checker, slow_save
from tests.cluster.harness import Cluster
from tests.cluster.inspected import answer, run
from tests.cluster.small_cluster import LAST_STEP, SCRIPT, SmallCluster
from tests.cluster.test_standbys import start_with_standbys
from tests.cluster.undisturbed import Undisturbed
from tests.small_disk import btrfs_disk

pytestmark = pytest.mark.cluster

TERMINATED = 128 + signal.SIGTERM
PATIENT = {"MS_DRAIN_TIMEOUT": "120", "JOB_ANSWER_MS": "60000"}
"""A handover takes as long as it takes. And who ends without one, though it could wait so long, has not waited."""
SEED = int(os.environ.get("DRAIN_SEED", "1"))


def steps_lost(cluster: Cluster) -> int:
    """How many steps were applied more than once, over all ranks."""
    applied = [(line["rank"], line["step"]) for line in checker.lines(cluster.directory / "steps.jsonl")]
    return len(applied) - len(set(applied))


def outcomes(cluster: Cluster) -> list[str]:
    return [stored.event.reason for stored in cluster.events(EventKind.DRAIN_ENDED)]


def check_handed_over(cluster: Cluster, name: str = "worker_1") -> None:
    """The process ended as SIGTERM ends one, and a standby has gone on from where it was."""
    process = cluster.processes.pop(name)
    cluster.wait(lambda: process.poll() is not None, f"end of {name}")
    assert process.returncode == TERMINATED, cluster.tails()
    cluster.wait_event(EventKind.DRAIN_ENDED)
    cluster.wait_end()
    assert ["no step is lost" in outcome for outcome in outcomes(cluster)] == [True], outcomes(cluster)
    assert steps_lost(cluster) == 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallCluster]:
    """It does not end before the test says so."""
    environment = {**PATIENT, "JOB_HELD_STEP": str(LAST_STEP - 5)}
    with SmallCluster(tmp_path, window_s=30, environment=environment) as cluster:
        yield cluster


@pytest.mark.parametrize("step", [0, 1, 5, random.Random(SEED).randrange(6, 40), LAST_STEP - 8])
def test_sigterm_hands_the_rank_over_and_no_step_is_lost(tmp_path: Path, step: int) -> None:
    environment = {**PATIENT, "JOB_HELD_STEP": str(step + 1)}
    with SmallCluster(tmp_path, window_s=30, environment=environment) as small:
        start_with_standbys(small, 1)
        # A rank that does not train yet has nothing to hand over.
        small.wait(lambda: small.step_of_all() >= step, f"step {step} of both")
        if not step:
            small.wait_event(EventKind.STATE_LOADED, count=2)
        small.signal("worker_1", signal.SIGTERM)
        small.wait_event(EventKind.DRAIN_BEGUN)
        small.go_on()
        check_handed_over(small)
        small.check_result()
        [taken] = small.events(EventKind.RANK_TAKEN_OVER)
        assert (taken.event.node_id, taken.event.rank, taken.event.details) == ("standby_0", 1, "worker_1")
        assert "its rank is handed over at step" in small.log("worker_1")


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(2))
def test_a_torch_job_goes_on_bit_by_bit_whenever_the_signal_comes(
    tmp_path: Path, undisturbed: Undisturbed, moment: int
) -> None:
    """A rank that has passed the step waits in a collective for one that stops there: a later step is agreed on."""
    draw = random.Random(SEED + moment)
    environment = {**PATIENT, "JOB_EPOCHS": "2", "JOB_STEP_MS": str(draw.choice([0, 2, 30]))}
    environment["JOB_HELD_STEP"] = "45"
    with Cluster(tmp_path, workers=3, window_s=30, environment=environment) as cluster:
        for name in cluster.names:
            cluster.launch(name)
        cluster.launch("standby_0", MS_STANDBY="1")
        cluster.launch("sched", MS_STANDBY_NUM="1")
        cluster.wait_event(EventKind.NODE_READY, "standby_0")
        cluster.wait_step(draw.randrange(1, 30))
        name = draw.choice(cluster.names)
        cluster.signal(name, signal.SIGTERM)
        # They stop where they are, or in the step that is held.
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        check_handed_over(cluster, name)
        cluster.check_same_as(undisturbed(3, JOB_EPOCHS="2"))


def test_a_script_that_is_entered_once_hands_its_rank_over_too(tmp_path: Path) -> None:
    environment = {**PATIENT, "JOB_FACE": "init", "MS_STANDBY_NUM": "1", "JOB_HELD_STEP": "20"}
    with SmallCluster(tmp_path, window_s=30, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(6)
        cluster.signal("worker_1", signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        cluster.go_on()
        check_handed_over(cluster)
        cluster.check_result()


def test_a_save_under_way_ends_first(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, window_s=30, environment={**PATIENT, "JOB_HOLD_SAVE": "10"}) as cluster:
        shutil.copy(slow_save.__file__, tmp_path / SCRIPT)
        start_with_standbys(cluster, 1)
        cluster.wait((tmp_path / "saving").exists, "save")
        cluster.signal("worker_1", signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        (tmp_path / "save_on").touch()
        check_handed_over(cluster)
        cluster.check_result()


# --- without a standby ----------------------------------------------------------------------------------------------------


def test_without_a_standby_the_process_leaves_behind_a_save(small: SmallCluster) -> None:
    small.start()
    small.wait_step(5)
    small.signal("worker_1", signal.SIGTERM)
    assert small.wait_exit("worker_1") == TERMINATED
    assert "no standby is ready" in small.log("worker_1")
    small.wait_event(EventKind.NODE_LEFT, "worker_1")
    [ended] = small.events(EventKind.DRAIN_ENDED)
    assert ended.event.reason == "no standby is ready"
    small.launch("worker_1")
    small.go_on()
    small.wait_end()
    small.check_result()
    plans = [one.event.step for one in small.events(EventKind.PLAN_MADE)]
    assert plans == [0, ended.event.step], "all had saved where it left"


def test_without_a_ready_standby_a_script_ends_by_the_signal(tmp_path: Path) -> None:
    environment = {**PATIENT, "JOB_FACE": "init", "JOB_HELD_STEP": str(LAST_STEP - 5)}
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait_step(6)
        cluster.signal("worker_1", signal.SIGTERM)
        assert cluster.wait_exit("worker_1") == -signal.SIGTERM
        assert "no standby is ready" in cluster.log("worker_1")
        cluster.launch("worker_1")
        cluster.go_on()
        cluster.wait_end()
        cluster.check_result()


_OWN_LOOP = """
import time
import recovery
from tests.cluster.small_job import Tally

@recovery.run
def train(session):
    session.restore(Tally())
    with session.loop():
        for step in range(session.step + 1, 1_000_000):
            session.check()
            time.sleep(0.02)
            session.applied(step=step, epoch=1, step_in_epoch=step)
            SAYS

train()
"""


@pytest.mark.parametrize(
    ("says", "reason"),
    [("pass", "does not call session.stop_if_asked()"), ("session.stop_if_asked()", "nothing that can save")],
)
def test_a_loop_that_cannot_save_out_of_turn_keeps_nobody_waiting(
    small: SmallCluster, says: str, reason: str
) -> None:
    (small.directory / SCRIPT).write_text(_OWN_LOOP.replace("SAYS", says))
    start_with_standbys(small, 1)
    small.wait_step(5)
    small.signal("worker_1", signal.SIGTERM)
    assert small.wait_exit("worker_1") == TERMINATED
    [outcome] = outcomes(small)
    assert reason in outcome


@pytest.mark.parametrize("standbys", [1, 2])
def test_all_processes_that_are_asked_to_end_together_end_at_once(small: SmallCluster, standbys: int) -> None:
    """As a launcher ends a job: there is nobody to hand a rank over to, since the standbys end too."""
    start_with_standbys(small, standbys)
    small.wait_step(5)
    names = [*small.names, *(f"standby_{number}" for number in range(standbys))]
    for name in names:
        small.signal(name, signal.SIGTERM)
    for name in names:
        assert small.wait_exit(name) == TERMINATED
    assert not small.events(EventKind.RANK_TAKEN_OVER)


# --- something happens in the middle -------------------------------------------------------------------------------------

HELD = 20


@pytest.fixture
def held(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallCluster]:
    """A job in step 20, which is where all ranks have agreed to stop: it is not applied before the test says so."""
    wait = {"MS_DRAIN_TIMEOUT": request.param} if hasattr(request, "param") else PATIENT
    environment = {**wait, "JOB_HELD_STEP": str(HELD)}
    with SmallCluster(tmp_path, window_s=0.5, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(HELD - 1)
        cluster.signal("worker_1", signal.SIGTERM)
        cluster.wait_event(EventKind.DRAIN_BEGUN)
        yield cluster


def _as_without_it(cluster: SmallCluster, *lost: str) -> None:
    """The rank is trained on as after any departure."""
    assert cluster.wait_exit("worker_1") == TERMINATED
    del cluster.processes["worker_1"]
    cluster.go_on()
    for name in lost:
        cluster.launch(name)
    cluster.wait_end()
    cluster.check_result()
    assert not any("no step is lost" in outcome for outcome in outcomes(cluster))


def test_a_standby_that_dies_in_the_middle_ends_it(held: SmallCluster) -> None:
    held.kill("standby_0")
    del held.processes["standby_0"]
    held.wait_event(EventKind.NODE_SUSPECTED, "standby_0")
    # It leaves behind a save.
    held.go_on()
    _as_without_it(held, "worker_1")
    assert outcomes(held) == ["no standby is ready"]


def test_a_survivor_that_dies_in_the_middle_ends_it(held: SmallCluster) -> None:
    held.kill("worker_0")
    _as_without_it(held, "worker_0", "worker_1")
    [outcome] = outcomes(held)
    assert outcome.startswith("worker_0 is suspect")


def test_who_departs_and_dies_in_the_middle_is_lost(held: SmallCluster) -> None:
    held.kill("worker_1")
    del held.processes["worker_1"]
    held.go_on()
    held.wait_end()
    held.check_result()
    [taken] = held.events(EventKind.RANK_TAKEN_OVER)
    assert taken.event.details == "worker_1"


def test_a_scheduler_that_dies_in_the_middle_ends_it(held: SmallCluster) -> None:
    held.kill("sched")
    held.launch("sched", MS_STANDBY_NUM="1")
    _as_without_it(held)
    assert "the connection to the scheduler closed" in held.log("worker_1")


@pytest.mark.parametrize("held", ["3"], indirect=True)
def test_a_rank_that_does_not_reach_the_step_in_time_ends_it(held: SmallCluster) -> None:
    assert held.wait_exit("worker_1") == TERMINATED
    held.go_on()
    del held.processes["worker_1"]
    held.wait_end()
    held.check_result()
    assert "MS_DRAIN_TIMEOUT" in held.log("worker_1")


# --- recovery drain -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", ["run", "init"])
def test_a_person_drains_a_node(tmp_path: Path, face: str) -> None:
    environment = {**PATIENT, "JOB_FACE": face, "JOB_HELD_STEP": "20"}
    with SmallCluster(tmp_path, window_s=30, environment=environment) as cluster:
        start_with_standbys(cluster, 1)
        cluster.wait_step(7)
        with ThreadPoolExecutor(1) as person:
            asked = person.submit(run, "drain", str(tmp_path / "recovery"), "worker_1")
            cluster.wait_event(EventKind.DRAIN_BEGUN)
            cluster.go_on()
            done = asked.result()
        assert done.returncode == 0, done.stderr
        assert "no step is lost" in done.stdout
        check_handed_over(cluster)
        cluster.check_result()


@pytest.mark.root
def test_a_person_drains_a_node_of_a_job_whose_state_is_on_btrfs(tmp_path: Path) -> None:
    """Its scheduler was shown as not running, and nobody was asked."""
    with btrfs_disk(tmp_path / "disk") as disk:
        environment = {**PATIENT, "JOB_HELD_STEP": "20", "MS_RECOVERY_PATH": str(disk / "job")}
        with SmallCluster(tmp_path, window_s=30, environment=environment) as cluster:
            start_with_standbys(cluster, 1)
            cluster.wait_step(7)
            scheduler = answer("status", str(disk / "job"))["scheduler"]
            assert (scheduler["pid"], scheduler["alive"]) == (cluster.processes["sched"].pid, True)
            with ThreadPoolExecutor(1) as person:
                asked = person.submit(run, "drain", str(disk / "job"), "worker_1")
                cluster.wait_event(EventKind.DRAIN_BEGUN)
                cluster.go_on()
                done = asked.result()
            assert done.returncode == 0, done.stderr
            check_handed_over(cluster)
            cluster.check_result()


def test_what_cannot_be_drained_is_said_with_the_reason(tmp_path: Path) -> None:
    with SmallCluster(tmp_path, environment={"JOB_HELD_STEP": "7"}) as cluster:
        cluster.start()
        cluster.wait_step(6)
        _check_refusals(cluster, str(tmp_path / "recovery"))


def _check_refusals(small: SmallCluster, path: str) -> None:
    refused = run("drain", path, "worker_1")
    assert (refused.returncode, refused.stdout) == (66, "")
    assert refused.stderr.startswith("NOT_HANDED_OVER: worker_1: not handed over: no standby is ready. ")
    unknown = run("drain", path, "worker_7")
    assert unknown.returncode == 64
    assert "worker_7" in unknown.stderr
    assert run("drain", path, "127.0.0.1").stderr.startswith("NOT_HANDED_OVER: 127.0.0.1: ")
    small.go_on()
    small.wait_end()
    small.check_result()
    ended = run("drain", path, "worker_1")
    assert ended.returncode == 64
    assert "no scheduler of this job runs" in ended.stderr
