"""Files that are damaged, gone, or another rank's: said by name and path, never loaded, never written over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recovery.core.records import EventKind
from tests.cluster.inspected import run
from tests.cluster.small_cluster import SmallCluster

pytestmark = pytest.mark.cluster

NEWEST = "small-1_20"
"""The files of step 20, which all ranks hold when the job is stopped."""


def stopped_job(directory: Path) -> SmallCluster:
    """Three workers that were killed in step 22, with their scheduler; all hold step 20."""
    cluster = SmallCluster(directory, workers=3)
    with cluster:
        for name in (*cluster.names, "sched"):
            cluster.launch(name, JOB_HELD_STEP="22")
        cluster.wait_commit(20)
        cluster.kill(*cluster.names, "sched")
    return cluster


def plan_of(directory: Path) -> Any:
    """What `recovery plan` says, whether the job could go on or not."""
    return json.loads(run("plan", str(directory / "recovery"), "--json").stdout)


def last_plan(cluster: SmallCluster) -> tuple[int | None, str]:
    event = cluster.events(EventKind.PLAN_MADE)[-1].event
    return event.step, event.reason


def passed_over(cluster: SmallCluster) -> list[tuple[int | None, str, str]]:
    """(rank, path, reason) of each such event."""
    kind = EventKind("checkpoint_passed_over")
    return [(one.event.rank, one.event.details, one.event.reason) for one in cluster.events(kind)]


def test_a_directory_copied_over_another_ranks_is_never_loaded(tmp_path: Path) -> None:
    with stopped_job(tmp_path) as cluster:
        shutil.rmtree(tmp_path / "ckpt/2")
        shutil.copytree(tmp_path / "ckpt/0", tmp_path / "ckpt/2")

        planned = plan_of(tmp_path)
        cluster.start()
        code = cluster.wait_exit("sched")

        results = sorted(path.name for path in tmp_path.glob("result_*"))
        assert (code != 0, results) == (True, []), "it trained on from another rank's state"
        [failed] = cluster.events(EventKind.JOB_FAILED)
        why = "rank 2: it is of rank 0, not of rank 2"
        assert f"step 20 was committed and is not usable: {why}" in failed.event.reason
        assert planned["action"] == "fail"
        assert why in planned["reason"]
        found = [one for one in passed_over(cluster) if one[1].endswith(f"ckpt/2/{NEWEST}.ckpt")]
        assert found == [(2, str(tmp_path / f"ckpt/2/{NEWEST}.ckpt"), "it is of rank 0, not of rank 2")]


def test_one_file_of_another_rank_sends_everybody_to_the_older_step(tmp_path: Path) -> None:
    with stopped_job(tmp_path) as cluster:
        for suffix in (".ckpt", ".json"):
            shutil.copy(tmp_path / f"ckpt/0/{NEWEST}{suffix}", tmp_path / f"ckpt/2/{NEWEST}{suffix}")
        copied = (tmp_path / f"ckpt/2/{NEWEST}.ckpt").read_bytes()

        cluster.start()
        cluster.wait_end()

        step, reason = last_plan(cluster)
        assert step == 15
        assert "step 20 was committed and is not usable: rank 2: it is of rank 0" in reason
        cluster.check_result()
        assert (tmp_path / f"ckpt/2/{NEWEST}.ckpt.kept-1").read_bytes() == copied
        assert (tmp_path / f"ckpt/2/{NEWEST}.json.kept-1").exists()


@pytest.mark.parametrize("how", ["cut short", "changed"])
def test_files_that_are_not_usable_are_named_by_the_plan_and_kept(tmp_path: Path, how: str) -> None:
    with stopped_job(tmp_path) as cluster:
        bad = tmp_path / f"ckpt/1/{NEWEST}.ckpt"
        whole = bad.read_bytes()
        bad.write_bytes(whole[:-3] if how == "cut short" else bytes([whole[0] ^ 1, *whole[1:]]))
        damaged = bad.read_bytes()
        for suffix in (".ckpt", ".json"):
            (tmp_path / f"ckpt/2/{NEWEST}{suffix}").unlink()
        planned = plan_of(tmp_path)

        cluster.start()
        cluster.wait_end()

        step, reason = last_plan(cluster)
        assert step == planned["step"] == 15
        assert "step 20 was committed and is not usable: " in reason
        assert "rank 2: missing" in reason
        assert "rank 2: missing" in planned["reason"]
        if how == "cut short":
            assert f"rank 1: CHECKPOINT_DIGEST: {bad} does not match its manifest (size" in reason
            assert reason.removeprefix("every rank holds step 15") in planned["reason"]
            assert [one[:2] for one in passed_over(cluster)] == [
                (1, str(bad)),
                (2, str(tmp_path / f"ckpt/2/{NEWEST}.ckpt")),
            ]
        cluster.check_result()
        assert bad.with_name(f"{bad.name}.kept-1").read_bytes() == damaged
        assert f"event=checkpoint_kept path={bad}" in cluster.log("worker_1")


def test_a_file_that_fails_when_it_is_loaded_is_in_the_next_plans_reason(tmp_path: Path) -> None:
    with stopped_job(tmp_path) as cluster:
        bad = tmp_path / f"ckpt/1/{NEWEST}.ckpt"
        whole = bad.read_bytes()
        bad.write_bytes(bytes([whole[0] ^ 1, *whole[1:]]))
        planned = plan_of(tmp_path)

        cluster.start()
        cluster.wait_end()

        why = f"step 20 was committed and is not usable: rank 1: CHECKPOINT_DIGEST: {bad} does not match"
        step, reason = last_plan(cluster)
        assert (step, planned["step"]) == (15, 15)
        assert why in reason
        assert why in planned["reason"]
        cluster.check_result()
        assert (tmp_path / f"ckpt/1/{NEWEST}.ckpt.kept-1").read_bytes()[0] == whole[0] ^ 1


def test_a_directory_that_is_gone_from_this_host_is_missing_and_not_unseen(tmp_path: Path) -> None:
    with stopped_job(tmp_path) as cluster:
        shutil.rmtree(tmp_path / "ckpt/2")

        planned = plan_of(tmp_path)
        cluster.start()
        code = cluster.wait_exit("sched")

        assert planned["action"] == "fail"
        assert "step 20 was committed and is not usable: rank 2: missing" in planned["reason"]
        assert code != 0
        [failed] = cluster.events(EventKind.JOB_FAILED)
        assert "step 20 was committed and is not usable: rank 2: missing" in failed.event.reason
