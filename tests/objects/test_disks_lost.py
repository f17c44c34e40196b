"""Every process and every worker's disk is lost: the job goes on from object storage and ends with the same bits."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.objects import commits
from recovery.objects.store import ObjectStore
from tests.cluster.small_cluster import SmallCluster
from tests.objects.conftest import BUCKET, opened_for_tests

pytestmark = pytest.mark.cluster

HELD, SAVED = 19, 15
"""The step that is held up, and the newest that is committed then: small_job.py saves every fifth one."""


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
        yield cluster, store


def committed_there(store: ObjectStore) -> set[int]:
    [job] = store.names("") or ("",)
    return {at.step for at in commits.steps(store, job, 1)} if job else set()


def lose_disks(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "ckpt")
    shutil.rmtree(tmp_path / "recovery" / "workers")


def ends_as_undisturbed(cluster: SmallCluster) -> None:
    cluster.go_on()
    for name in (*cluster.names, "sched"):
        assert cluster.wait_exit(name, 40) == 0, cluster.tails()
    cluster.check_result()


def test_all_lost_but_the_scheduler_s_store(tmp_path: Path, s3_address: str) -> None:
    with held_up(tmp_path, s3_address) as (cluster, store):
        cluster.wait(lambda: SAVED in committed_there(store), "commit in the store", 30)
        cluster.kill(*cluster.names, "sched")
        lose_disks(tmp_path)
        cluster.start()
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.events(EventKind.PLAN_MADE)[-1].event.step == SAVED
        ends_as_undisturbed(cluster)
        for name in cluster.names:
            assert f"event=checkpoint_brought step={SAVED} url=s3://{BUCKET}" in cluster.log(name)
        assert max(committed_there(store)) == 60
        assert len(committed_there(store)) == 3
