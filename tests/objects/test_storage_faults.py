"""Jobs of real processes whose way to object storage is slow, torn or dead: training goes on, and nobody believes what is half done."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.errors import ROWS
from recovery.objects import commits
from recovery.objects.store import ObjectStore
from tests.cluster.small_cluster import LAST_STEP, SmallCluster
from tests.objects.body_proxy import Asked, BodyProxy, Fault
from tests.objects.conftest import opened_for_tests
from tests.objects.test_disks_lost import (
    HELD,
    SAVED,
    UPLOAD_NOT_FINISHED,
    committed_on_disks,
    committed_there,
    ends_as_undisturbed,
    environment_of,
    held_up,
    jobs_in,
    lose_disks,
)

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.slow]

PADDING = 1 << 20
SAVES = set(range(5, LAST_STEP + 1, 5))
NO_COMMON = ROWS["NO_COMMON_CHECKPOINT"].exit_code
KEPT_ON_DISK = 3
"""As small_job.py asks for."""


def sends_file(asked: Asked) -> bool:
    return asked.is_file and asked.method == "PUT"


def gets_file(asked: Asked) -> bool:
    return asked.is_file and asked.method == "GET"


@pytest.fixture
def proxy(s3_address: str) -> Iterator[BodyProxy]:
    with BodyProxy(s3_address) as made:
        yield made


def padded(address: str, url: str) -> dict[str, str]:
    return {**environment_of(address, url), "JOB_PADDING": str(PADDING)}


def check_all_whole(store: ObjectStore, tmp_path: Path) -> None:
    """Every step that counts comes back, for every rank, as its commit names it."""
    for job in jobs_in(store):
        seen = commits.steps(store, job, 1)
        assert seen
        for at in seen:
            commit = commits.read_commit(store, job, 1, at)
            assert commit is not None
            for rank in range(commit.world_size):
                commits.download(store, commit, rank, tmp_path / f"back-{job}-{at.name}-{rank}")


def test_a_worker_is_killed_in_the_middle_of_its_upload(
    tmp_path: Path, s3_address: str, proxy: BodyProxy
) -> None:
    store = opened_for_tests(s3_address, tmp_path)
    proxy.set(Fault.HOLD, sends_file)
    with SmallCluster(tmp_path, environment=padded(s3_address, store.url)) as cluster:
        cluster.launch("worker_0")
        cluster.launch("worker_1", AWS_ENDPOINT_URL=proxy.address)
        cluster.launch("sched")
        cluster.wait(lambda: proxy.met, "file of worker_1 on its way")
        cluster.wait(lambda: SAVED in committed_on_disks(cluster), "commit on the disks")
        cluster.kill("worker_1")
        proxy.clear()
        cluster.wait(lambda: proxy.at_once == 0, "end of the upload")
        assert committed_there(store) == set(), "half of a file is no step"
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
        ends_as_undisturbed(cluster)
        [reason] = cluster.reasons_lost("worker_1")
        assert "has ended" in reason
        assert "event=checkpoint_uploaded step=60" in cluster.log("worker_1")
    assert max(committed_there(store)) == LAST_STEP
    check_all_whole(store, tmp_path)


def test_storage_that_stands_still_delays_no_step_and_fills_no_disk(
    tmp_path: Path, s3_address: str, proxy: BodyProxy
) -> None:
    store = opened_for_tests(s3_address, tmp_path)
    proxy.set(Fault.HOLD, sends_file)
    # Files go at the next save behind a commit, so the last one waits for the commit before.
    held = {"JOB_HELD_FIRST": str(HELD), "JOB_HELD_STEP": str(LAST_STEP - 1)}
    with SmallCluster(tmp_path, environment={**padded(proxy.address, store.url), **held}) as cluster:
        cluster.start()
        cluster.wait(lambda: proxy.met, "file that the storage does not take")
        cluster.wait(lambda: SAVED in committed_on_disks(cluster), "commit on the disks")
        (tmp_path / "go_on_first").touch()
        cluster.wait(lambda: LAST_STEP - 5 in committed_on_disks(cluster), "commit before the last")
        cluster.go_on()
        cluster.wait(lambda: LAST_STEP in committed_on_disks(cluster), "end of the training")
        on_disk = [len(list((tmp_path / f"ckpt/{rank}").glob("*.ckpt"))) for rank in range(2)]
        assert committed_there(store) == set()
        proxy.clear()
        ends_as_undisturbed(cluster)
        logs, said = [cluster.log(name) for name in cluster.names], cluster.log("sched")
    skipped = {int(step) for step in re.findall(r"event=uploads_skipped steps=(\d+) ", said)}
    assert "reason='object storage was not done with the step before'" in said
    # What the storage has, what is on its way there, and the one that is being written.
    assert max(on_disk) <= KEPT_ON_DISK + 3
    assert proxy.at_once_max <= 2, "one file of each rank at a time"
    for log in logs:
        sent = {int(step) for step in re.findall(r"event=checkpoint_uploaded step=(\d+) ", log)}
        assert sent.isdisjoint(skipped)
        assert sent | skipped == SAVES, "each committed step was sent, or it was said why not"
    check_all_whole(store, tmp_path)


def test_uploads_that_are_cut_in_the_middle_are_said_and_made_again(
    tmp_path: Path, s3_address: str, proxy: BodyProxy
) -> None:
    store = opened_for_tests(s3_address, tmp_path)
    proxy.set(Fault.CUT, sends_file)
    with SmallCluster(tmp_path, environment=padded(proxy.address, store.url)) as cluster:
        cluster.start()
        failed = "event=upload_failed training goes on"
        cluster.wait(lambda: all(failed in cluster.log(name) for name in cluster.names), "a cut")
        assert SAVED in committed_on_disks(cluster), "training went on"
        assert committed_there(store) == set()
        proxy.clear()
        ends_as_undisturbed(cluster)
        assert cluster.reasons_lost() == []
    assert max(committed_there(store)) == LAST_STEP
    check_all_whole(store, tmp_path)


@pytest.mark.parametrize("stays", [False, True], ids=["once", "always"])
def test_a_torn_download_is_refused_and_said(
    tmp_path: Path, s3_address: str, proxy: BodyProxy, stays: bool
) -> None:
    with held_up(tmp_path, s3_address) as (cluster, store):
        cluster.kill(*cluster.names, "sched")
        lose_disks(tmp_path)
        [job] = jobs_in(store)
        newest, before = commits.steps(store, job, 1)[:2]
        assert newest.step == SAVED
        proxy.set(
            Fault.SHORT,
            lambda asked: gets_file(asked) and newest.name in asked.path and (stays or not proxy.met),
        )
        for name in cluster.names:
            cluster.launch(name, AWS_ENDPOINT_URL=proxy.address)
        cluster.launch("sched")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        expected = before.step if stays else newest.step
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == expected
        ends_as_undisturbed(cluster)
        torn = saying(cluster, f"checkpoint_torn step={newest.step}")
        # Who asks when the other rank has found the damage takes its word for it.
        told = saying(cluster, f"store_step_damaged step={newest.step}")
        assert torn
        assert torn | told == set(cluster.names) if stays else (len(torn), told) == (1, set())
        not_brought = saying(cluster, f"checkpoint_not_brought step={newest.step}")
        assert not_brought == (torn if stays else set())
        assert saying(cluster, f"checkpoint_brought step={expected}") == set(cluster.names)


def saying(cluster: SmallCluster, event: str) -> set[str]:
    """Whose logs have an event."""
    return {name for name in cluster.names if f"event={event} " in cluster.log(name)}


def test_damage_of_one_rank_s_part_makes_all_ranks_take_the_step_before(
    tmp_path: Path, s3_address: str
) -> None:
    """Whoever was faster comes with the newest step and finds no common one; the next start knows of the damage."""
    with held_up(tmp_path, s3_address) as (cluster, store):
        cluster.kill(*cluster.names, "sched")
        lose_disks(tmp_path)
        [job] = jobs_in(store)
        newest, before = commits.steps(store, job, 1)[:2]
        commit = commits.read_commit(store, job, 1, newest)
        assert commit is not None
        (tmp_path / "damaged").write_bytes(b"stale")
        store.put(f"{commit.ranks[1].prefix}/0", tmp_path / "damaged")
        cluster.launch("sched")
        cluster.launch("worker_0")
        # It has the newest step before anybody knows of the damage.
        cluster.wait(
            lambda: f"event=checkpoint_brought step={newest.step}" in cluster.log("worker_0"), "first"
        )
        cluster.launch("worker_1")
        assert [cluster.wait_exit(name) for name in (*cluster.names, "sched")] == [NO_COMMON] * 3
        cluster.start()
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == before.step
        ends_as_undisturbed(cluster)
        for name in cluster.names:
            assert f"event=store_step_damaged step={newest.step}" in cluster.log(name)


def test_two_jobs_of_one_prefix_leave_each_other_alone(tmp_path: Path, s3_address: str) -> None:
    store = opened_for_tests(s3_address, tmp_path)
    places = [tmp_path / "a", tmp_path / "b"]
    for place in places:
        place.mkdir()
    environment = environment_of(s3_address, store.url)
    with (
        SmallCluster(places[0], environment=environment) as one,
        SmallCluster(places[1], environment=environment) as other,
    ):
        one.start()
        other.start()
        one.wait(lambda: len(jobs_in(store)) == 2, "both jobs")
        jobs = jobs_in(store)
        one.wait(lambda: all(SAVED in steps_there(store, job) for job in jobs), "commits in the store")
        for cluster in (one, other):
            cluster.kill(*cluster.names, "sched")
            lose_disks(cluster.directory)
        for cluster in (one, other):
            cluster.start()
        for cluster in (one, other):
            cluster.wait_event(EventKind.PLAN_MADE, count=2)
            assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
            ends_as_undisturbed(cluster)
    for job in jobs:
        assert max(steps_there(store, job)) == LAST_STEP
    check_all_whole(store, tmp_path)


def steps_there(store: ObjectStore, job: str) -> set[int]:
    return {at.step for at in commits.steps(store, job, 1)}


def test_storage_that_says_nothing_holds_up_a_start_for_seconds_only(tmp_path: Path) -> None:
    """It takes connections and is silent: a driver alone waits for 30 s, and again, four times."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = environment_of(address, "s3://bucket/prefix")
        with SmallCluster(tmp_path, environment=environment) as cluster:
            cluster.start()
            cluster.wait(lambda: SAVED in committed_on_disks(cluster), "commit on the disks")
            cluster.kill("worker_1")
            cluster.launch("worker_1")
            cluster.wait_event(EventKind.PLAN_MADE, count=2)
            assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
            ends_as_undisturbed(cluster, code=UPLOAD_NOT_FINISHED)
            log = cluster.log("worker_1")
            assert all("event=upload_not_finished" in cluster.log(name) for name in cluster.names)
    assert re.search(
        r"event=store_not_asked waited_s=[0-9.]+ training goes on without it: .*no answer in time", log
    )
