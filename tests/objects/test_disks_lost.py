"""Every process and every worker's disk is lost: the job goes on from object storage and ends with the same bits."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.objects import commits
from recovery.objects.store import ObjectStore
from tests.cluster.small_cluster import SmallCluster
from tests.faults.fault_proxy import BOTH, FaultProxy
from tests.objects.conftest import BUCKET, opened_for_tests

pytestmark = pytest.mark.cluster

UPLOAD_NOT_FINISHED = 48
HELD, SAVED = 19, 15
"""The step that is held up, and the newest that is committed then: small_job.py saves every fifth one."""
ROLLED_BACK_TO, HELD_AGAIN = 10, 12


def environment_of(address: str, url: str) -> dict[str, str]:
    return {
        "MS_CHECKPOINT_STORE": url,
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "JOB_STEP_MS": "5",
        "JOB_HELD_STEP": str(HELD),
    }


@contextlib.contextmanager
def held_up(tmp_path: Path, address: str) -> Iterator[tuple[SmallCluster, ObjectStore]]:
    store = opened_for_tests(address, tmp_path)
    with SmallCluster(tmp_path, environment=environment_of(address, store.url)) as cluster:
        cluster.start()
        cluster.wait(lambda: SAVED in committed_there(store), "commit in the store")
        yield cluster, store


def jobs_in(store: ObjectStore) -> list[str]:
    """The jobs that have sent something. Each worker tries the storage first, with an object that it removes again."""
    return [name for name in store.names("") if not name.startswith("probe-")]


def committed_there(store: ObjectStore) -> set[int]:
    [job] = jobs_in(store) or ("",)
    return {at.step for at in commits.steps(store, job, 1)} if job else set()


def committed_on_disks(cluster: SmallCluster) -> set[int | None]:
    return {stored.event.step for stored in cluster.events(EventKind.CHECKPOINT_COMMITTED)}


def lose_disks(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "ckpt")
    shutil.rmtree(tmp_path / "recovery" / "workers")


def lose_disk(tmp_path: Path, name: str, rank: int) -> None:
    shutil.rmtree(tmp_path / "ckpt" / str(rank))
    for path in (tmp_path / "recovery" / "workers").glob(f"{name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def ends_as_undisturbed(cluster: SmallCluster, *, code: int = 0) -> None:
    """All bits are there; `code` is how the workers end."""
    cluster.go_on()
    for name in cluster.names:
        assert cluster.wait_exit(name) == code, cluster.tails()
    assert cluster.wait_exit("sched") == 0, cluster.tails()
    cluster.check_result()


def test_all_lost_but_the_scheduler_s_store(tmp_path: Path, s3_address: str) -> None:
    with held_up(tmp_path, s3_address) as (cluster, store):
        cluster.kill(*cluster.names, "sched")
        lose_disks(tmp_path)
        cluster.start()
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
        ends_as_undisturbed(cluster)
        for name in cluster.names:
            assert f"event=checkpoint_brought step={SAVED} url=s3://{BUCKET}" in cluster.log(name)
        # A storage that falls behind is given the newest.
        assert {SAVED, 60} <= set(committed_there(store))
        assert len(committed_there(store)) <= 3


def test_one_worker_on_an_empty_disk_takes_its_part_back(tmp_path: Path, s3_address: str) -> None:
    with held_up(tmp_path, s3_address) as (cluster, _):
        cluster.kill("worker_1")
        lose_disk(tmp_path, "worker_1", 1)
        cluster.launch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
        ends_as_undisturbed(cluster)
        assert f"event=checkpoint_brought step={SAVED}" in cluster.log("worker_1")
        assert "event=checkpoint_brought" not in cluster.log("worker_0")


def test_a_disk_is_lost_behind_a_rollback_of_the_newest_step_that_the_storage_has(
    tmp_path: Path, s3_address: str
) -> None:
    """It was brought, once, and no older one: the job ended for want of a common step, though the storage had it."""
    store = opened_for_tests(s3_address, tmp_path)
    held_twice = {**environment_of(s3_address, store.url), "JOB_HELD_FIRST": str(HELD_AGAIN)}
    with SmallCluster(tmp_path, environment=held_twice) as cluster:
        cluster.start()
        cluster.wait(lambda: ROLLED_BACK_TO in committed_there(store), "commit in the store")
        (tmp_path / "go_on_first").touch()
        cluster.wait(lambda: SAVED in committed_there(store), "next commit in the store")
        (tmp_path / "go_on_first").unlink()
        [newest] = (tmp_path / "ckpt" / "1").glob(f"*_{SAVED}.ckpt")
        newest.write_bytes(b"x" * newest.stat().st_size)
        cluster.kill_and_relaunch("worker_0")
        cluster.wait_event(EventKind.PLAN_MADE, count=3)
        steps = [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)]
        assert steps == [0, SAVED, ROLLED_BACK_TO]
        cluster.wait_event(EventKind.FIRST_STEP_DONE, count=2 * 2)
        cluster.kill("worker_0")
        lose_disk(tmp_path, "worker_0", 0)
        cluster.launch("worker_0")
        cluster.wait_event(EventKind.PLAN_MADE, count=4)
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == ROLLED_BACK_TO
        assert f"event=checkpoint_brought step={ROLLED_BACK_TO}" in cluster.log("worker_0")
        (tmp_path / "go_on_first").touch()
        ends_as_undisturbed(cluster)


def test_training_ends_as_ever_while_the_storage_does_not_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    environment = environment_of(address, "s3://bucket/prefix")
    with SmallCluster(tmp_path, environment=environment) as cluster:
        cluster.start()
        cluster.wait(lambda: SAVED in committed_on_disks(cluster), "commit on the disks")
        cluster.kill_and_relaunch("worker_1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
        ends_as_undisturbed(cluster, code=UPLOAD_NOT_FINISHED)
        assert "event=store_not_asked" in cluster.log("worker_1")
        for name in cluster.names:
            assert "event=upload_failed" in cluster.log(name)


def test_one_disk_is_lost_while_the_storage_is_behind(tmp_path: Path, s3_address: str) -> None:
    """What the storage has stays on the other disks too, or there would be no step that all ranks hold."""
    with FaultProxy(int(s3_address.rpartition(":")[2])) as proxy:
        store = opened_for_tests(s3_address, tmp_path)
        environment = environment_of(f"http://127.0.0.1:{proxy.port}", store.url)
        held_twice = {**environment, "JOB_HELD_FIRST": str(HELD), "JOB_HELD_STEP": "46"}
        with SmallCluster(tmp_path, environment=held_twice) as cluster:
            cluster.start()
            cluster.wait(lambda: SAVED in committed_there(store), "commit in the store")
            proxy.hold(*BOTH)
            (tmp_path / "go_on_first").touch()
            # Three are kept: without the storage the one that it has would be gone.
            cluster.wait(lambda: 45 in committed_on_disks(cluster), "commit on the disks")
            cluster.kill("worker_1")
            lose_disk(tmp_path, "worker_1", 1)
            proxy.clear()
            cluster.launch("worker_1")
            cluster.wait_event(EventKind.PLAN_MADE, count=2)
            assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
            ends_as_undisturbed(cluster)
