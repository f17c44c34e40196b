"""Live rollback where a whole job has died and a rank has lost its checkpoint: a rank that has its own gives it to all, and the bits are the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.cluster.live_kinds import LIVE as KINDS
from tests.cluster.test_live_kinds import cluster_of
from tests.cluster.undisturbed import Undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LIVE = {"MS_ROLLBACK": "live"}
SAVED, STEP = 20, 25
"""The newest save, and where the job dies: saves are ten steps apart."""


def _missing(ckpt: Path) -> None:
    saved = checker.saved(ckpt / "2")[SAVED]
    for path in (saved, saved.with_suffix(".json")):
        path.unlink()


def _damaged(ckpt: Path) -> None:
    saved = checker.saved(ckpt / "0")[SAVED]
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    saved.write_bytes(content)


def _disks_lost(ckpt: Path) -> None:
    for rank in (0, 2):
        shutil.rmtree(ckpt / str(rank))


def _planned(cluster: Cluster) -> tuple[int | None, str]:
    event = cluster.events(EventKind.PLAN_MADE)[-1].event
    return event.step, event.reason


@pytest.mark.parametrize(
    ("lose", "source", "given_from"),
    # What is damaged is found out when it is loaded; by then the others have loaded theirs.
    [(_missing, 0, "checkpoint"), (_damaged, 1, "memory"), (_disks_lost, 1, "checkpoint")],
    ids=["missing", "damaged", "disks"],
)
def test_a_rank_gives_its_checkpoint_to_those_that_have_lost_theirs(
    tmp_path: Path, undisturbed: Undisturbed, lose: Callable[[Path], None], source: int, given_from: str
) -> None:
    with Cluster(tmp_path, workers=3, environment={**LIVE, "JOB_HELD_BEFORE": str(STEP + 1)}) as cluster:
        cluster.start()
        cluster.wait(lambda: cluster.step_of_all() >= STEP, "all ranks in one step")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill("sched", *cluster.names)
        lose(tmp_path / "ckpt")
        command = [sys.executable, "-m", "recovery", "plan", str(tmp_path / "recovery"), "--json"]
        said = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        cluster.go_on()
        cluster.start()
        cluster.wait_end()

        step, reason = _planned(cluster)
        assert (step, said["step"]) == (SAVED, SAVED)
        assert reason.startswith(f"rank {source} holds step {SAVED} in its {given_from}, and gives it to all")
        assert said["reason"].startswith(
            f"rank {source} holds step {SAVED} in its checkpoint, and gives it to all: "
        )
        assert given_from == "memory" or reason == said["reason"]
        assert [one["copy_of"] == [] for one in said["files"]] == [rank == source for rank in range(3)]
        for name in cluster.names:
            assert f"step={SAVED} from the {given_from} of rank {source}" in cluster.log(name)
        cluster.check_same_as(undisturbed(workers=3, **LIVE))


UNREDUCED = "its checkpoint holds gradients, and that they were added over the ranks is not written there"
BUFFERS_OF_ANOTHER = "the ranks have not agreed on it yet"
WITH_BUFFERS = {"statistics", "averages"}


@pytest.mark.parametrize(
    ("kind", "lost", "why_not"),
    [
        *((kind, 1, "") for kind in KINDS),
        ("unreduced", 1, UNREDUCED),
        *((kind, 0, BUFFERS_OF_ANOTHER) for kind in sorted(WITH_BUFFERS)),
        ("optimizers", 0, ""),
    ],
)
def test_what_people_train_is_given_or_refused_by_name(
    tmp_path: Path, kind: str, lost: int, why_not: str
) -> None:
    """Saves are seven steps apart. What cannot be given is found out by the rank that holds it; then all go back to their own."""
    undisturbed = cluster_of(tmp_path / "undisturbed", 2, kind)
    with undisturbed, cluster_of(tmp_path / "job", 2, kind, JOB_HELD_STEP="18") as cluster:
        undisturbed.start()
        cluster.start()
        cluster.wait((cluster.directory / "held").exists, "rank 0 to wait in its step")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill("sched", *cluster.names)
        saved = checker.saved(cluster.directory / f"ckpt/{lost}")[14]
        for path in (saved, saved.with_suffix(".json")):
            path.unlink()
        cluster.go_on()
        cluster.start()
        for one in (undisturbed, cluster):
            one.wait_end()

    (step, reason), *fallen_back = cluster.plans()
    assert (step, reason) == (
        14,
        f"rank {1 - lost} holds step 14 in its checkpoint, and gives it to all: rank {lost}: missing",
    )
    assert [step for step, _ in fallen_back] == ([7] if why_not else [])
    refused = [one.event.reason for one in cluster.events(EventKind.CHECKPOINT_INVALID)]
    assert all(why_not in one for one in refused)
    assert bool(refused) == bool(why_not)
    cluster.check_same_as(undisturbed, live=False)
