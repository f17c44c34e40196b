"""Live rollback with what people train: rank after rank is killed, no step is lost, and the bits are those of the undisturbed run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import checker, live_kinds, live_kinds_job
from tests.cluster.harness import Cluster
from tests.faults.live_events import LIVE, EventCluster

pytestmark = pytest.mark.cluster


class KindCluster(EventCluster):
    """Workers that run live_kinds_job.py."""

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, str(live_kinds_job.__file__))

    def steps_of(self, rank: int) -> dict[int, list[object]]:
        return {line["step"]: line["ids"] for line in checker.lines(self.directory / f"losses_{rank}.jsonl")}

    def plans(self) -> list[tuple[int | None, str]]:
        return [(one.event.step, one.event.reason) for one in self.events(EventKind.PLAN_MADE)][1:]

    @override
    def check_same_as(self, undisturbed: Cluster, *, live: bool = True, paused: int | None = None) -> None:
        assert isinstance(undisturbed, KindCluster)
        for rank in range(self.workers):
            assert self.steps_of(rank) == undisturbed.steps_of(rank), (
                f"rank {rank} took other steps\n{self.tails()}"
            )
        found, expected = ([json.loads(one) for one in which.digests()] for which in (self, undisturbed))
        assert found == expected, f"the final states differ\n{self.tails()}"
        checker.check_history(
            self.directory / "steps.jsonl", last_step=live_kinds.STEPS, live=live, paused=paused
        )


def cluster_of(directory: Path, workers: int, kind: str, **environment: str) -> KindCluster:
    directory.mkdir()
    return KindCluster(
        directory, workers=workers, window_s=30.0, environment={**LIVE, "JOB_KIND": kind, **environment}
    )


def deaths_of(kind: str) -> list[tuple[int, int]]:
    """Who dies in which step: two or more behind a save, which is durable some time later, and then a plan could as well go there."""
    if kind == "changed_by_a_callback":
        # Rank 0 has just changed what it had sent, and lives.
        return [(1, 10), (0, 18)]
    return [(0, 10), (1, 18)] if len(kind) % 2 else [(1, 9), (0, 20)]


@pytest.mark.parametrize("kind", live_kinds.LIVE)
def test_no_step_is_lost(tmp_path: Path, kind: str) -> None:
    deaths = deaths_of(kind)
    undisturbed = cluster_of(tmp_path / "undisturbed", 2, kind)
    strikes = ",".join(f"{rank}:{step}" for rank, step in deaths)
    with undisturbed, cluster_of(tmp_path / "job", 2, kind, JOB_DEATHS=strikes) as cluster:
        undisturbed.start()
        cluster.start()
        undisturbed.go_to_end()
        cluster.go_to_end()

    assert cluster.plans() == [
        (step - 1, f"rank {1 - rank} holds step {step - 1} in its memory, and gives it to all")
        for rank, step in deaths
    ]
    cluster.check_same_as(undisturbed)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("closure", "LBFGS had begun its step"),
        ("per_rank", "own"),
        ("extra_state", "extra state"),
        ("data_with_state", "state_dict"),
        ("own_optimizer", "OwnStateSGD"),
        ("unreduced", "no_sync"),
    ],
)
def test_where_a_training_cannot_go_on_from_memory_the_plan_says_why(
    tmp_path: Path, kind: str, why: str
) -> None:
    undisturbed = cluster_of(tmp_path / "undisturbed", 2, kind)
    with undisturbed, cluster_of(tmp_path / "job", 2, kind, JOB_DEATHS="1:11") as cluster:
        undisturbed.start()
        cluster.start()
        undisturbed.go_to_end()
        cluster.go_to_end()

    (step, reason), *more = cluster.plans()
    assert not more
    assert step in (0, 7), "the newest checkpoint, as far as it was on the disk"
    assert why in reason.partition("no live rollback: ")[2]
    cluster.check_same_as(undisturbed, live=False)
