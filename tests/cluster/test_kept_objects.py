"""What `session.keep` holds of a survivor: DistributedDataParallel and what is compiled are made once, and the bits are those of the undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import checker, kept_kinds
from tests.cluster.test_live_kinds import KindCluster, cluster_of

pytestmark = pytest.mark.cluster

DEATH = 9
TWICE = f"1:{DEATH},1:16"
"""One rank ends twice, so the other lives through three generations."""


def struck(directory: Path, kind: str, deaths: str, **environment: str) -> KindCluster:
    """A job that has ended as the undisturbed one."""
    undisturbed = cluster_of(directory / "undisturbed", 2, kind)
    with undisturbed, cluster_of(directory / "job", 2, kind, JOB_DEATHS=deaths, **environment) as cluster:
        undisturbed.start()
        cluster.start()
        undisturbed.go_to_end()
        cluster.go_to_end()
    pairs = [tuple(map(int, one.split(":"))) for one in deaths.split(",")]
    assert cluster.plans() == [
        (step - 1, f"rank {1 - rank} holds step {step - 1} in its memory, and gives it to all")
        for rank, step in pairs
    ]
    cluster.check_same_as(undisturbed)
    return cluster


def counts_of(cluster: KindCluster, rank: int, what: str) -> list[int]:
    """What a rank's process had made behind each step, more than before the first death: by then each pass that there is was compiled."""
    counts = [line[what] for line in checker.lines(cluster.directory / f"kept_{rank}.jsonl")][DEATH - 3 :]
    return [count - counts[0] for count in counts]


@pytest.mark.parametrize("kind", kept_kinds.KEPT)
def test_a_survivor_builds_and_compiles_once(tmp_path: Path, kind: str) -> None:
    cluster = struck(tmp_path, kind, TWICE)

    assert {*counts_of(cluster, 0, "made")} == {0}
    assert {*counts_of(cluster, 0, "compiled")} == {0}


@pytest.mark.parametrize("kind", kept_kinds.COMPILED)
def test_a_new_process_compiles_nothing_in_its_steps_behind_a_pass_in_a_world_of_one(
    tmp_path: Path, kind: str
) -> None:
    cluster = struck(tmp_path, kind, TWICE, JOB_PASS_AHEAD="yes")

    lines = checker.lines(cluster.directory / "kept_1.jsonl")
    ahead = {pid: (cluster.directory / f"ahead_{pid}").read_text() for pid in {line["pid"] for line in lines}}
    assert len(ahead) == 3
    assert "0" not in ahead.values()
    assert [str(line["compiled"]) for line in lines] == [ahead[line["pid"]] for line in lines]


def test_also_where_rank_0_ends(tmp_path: Path) -> None:
    cluster = struck(tmp_path, "kept_wrapper", f"0:{DEATH},0:16")

    assert {*counts_of(cluster, 1, "made")} == {0}


def test_what_cannot_be_kept_is_named_and_built_again(tmp_path: Path) -> None:
    cluster = struck(tmp_path, "kept_static", TWICE)

    assert {*counts_of(cluster, 0, "made")} == {0, 1, 2}
    assert "event=kept_let_go model, optimizer: a DistributedDataParallel has static_graph" in cluster.tails()
