"""A bit of one rank's weights flips, and nothing crashes: the rank is named at the next save, and training ends as if it had not flipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recovery.core.records import CheckpointState, EventKind
from recovery.report.stored import read_stored
from recovery.report.timeline import read_timeline
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_three_lines import changed, trained
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

_LOOP = "    for rows, targets in rt.steps"
_BEHIND = "            optimizer.step()\n"
_FLIP = """            import pathlib
            taken.append(1)
            if dist.get_rank() == 1 and len(taken) == 30 and not pathlib.Path("flipped").exists():
                pathlib.Path("flipped").touch()
                next(model.parameters()).detach().view(torch.int32)[0, 0] ^= 1 << 3
"""
_HELD = """            while dist.get_rank() == 1 and len(taken) == 40 and not pathlib.Path("let_go").exists():
                __import__("time").sleep(0.02)
"""
"""Step 40 is saved and told by rank 0, and rank 1 is still at it."""
_APART = """            if (at := __import__("recovery").current_session().step) % 7 == 6:
                for weight in model.parameters():
                    dist.all_reduce(weight.detach())
                    weight.detach().div_(2)
            while at == stops_at and __import__("pathlib").Path(f"held_{at}").exists():
                __import__("recovery").current_session().check()
                __import__("time").sleep(0.02)
"""


def flipping(more: str = "") -> str:
    """The page's script, in which a bit of rank 1's weights flips once."""
    script = changed()
    assert script.count(_BEHIND) == script.count(_LOOP) == 1
    return script.replace(_LOOP, f"    taken = []\n{_LOOP}").replace(_BEHIND, f"{_BEHIND}{_FLIP}{more}")


def averaging_by_hand() -> str:
    """The page's script, in which each rank trains for itself, and all average their weights every seven steps."""
    script, backward = changed(), "            loss.backward()\n"
    forward = "            loss = mse_loss(model(rows), targets)\n"
    assert script.count(f"{forward}{backward}") == 1
    alone = f"            with model.no_sync():\n    {forward}    {backward}"
    return script.replace(f"{forward}{backward}", alone).replace(_BEHIND, f"{_BEHIND}{_APART}")


def assert_equal(found: dict[str, torch.Tensor], sound: dict[str, torch.Tensor]) -> None:
    assert found.keys() == sound.keys()
    assert all(torch.equal(found[name], sound[name]) for name in sound)


def test_rank_whose_bit_has_flipped_is_named_and_all_go_back(tmp_path: Path) -> None:
    cluster, sound = trained(tmp_path / "sound", changed())
    assert cluster.events(EventKind.REPLICAS_DIFFER) == []
    rows = read_stored(tmp_path / "sound" / "recovery").checkpoints
    assert len({row.replica for row in rows if row.step == 80}) == 1
    assert all(len(row.replica) == 64 for row in rows), "compared at each save"
    cluster, weights = trained(tmp_path / "job", flipping())

    [event] = cluster.events(EventKind.REPLICAS_DIFFER)
    assert event.event.step == 40
    assert "model[0].weight" in event.event.reason
    state = read_stored(tmp_path / "job" / "recovery")
    [recovery] = read_timeline(state)[0].recoveries
    assert recovery.cause == "replicas"
    assert 20 <= recovery.lost_steps < 40, "it flipped behind step 30, and step 20 was sound"
    assert_equal(weights, sound)


def test_scheduler_that_dies_between_the_reports_of_a_step_names_it_all_the_same(tmp_path: Path) -> None:
    _, sound = trained(tmp_path / "sound", changed())
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "page.py").write_text(flipping(_HELD))
    with LaunchedCluster(directory, imports=TORCH) as cluster:
        cluster.start(script="page.py")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        cluster.wait(lambda: 40 in saved_steps(directory), "step 40 of rank 0")
        before = cluster.pid_of("sched")
        cluster.kill_node("sched")
        cluster.wait(lambda: cluster.find("sched") not in (0, before), "the next scheduler")
        (directory / "let_go").touch()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        # Step 60 may be saved before a rank has heard.
        first, *later = (event.event for event in cluster.events(EventKind.REPLICAS_DIFFER))
        assert (first.step, first.reason[:19]) == (40, "ranks 0, 1 differ, ")
        assert {event.generation for event in (first, *later)} == {1}
        [generation] = {
            event.event.generation
            for event in cluster.events(EventKind.CHECKPOINT_COMMITTED)
            if event.event.step == 40
        }
    assert generation == 2, "not before it was done again"
    assert_equal(torch.load(directory / "model.pt"), sound)


def saved_steps(directory: Path) -> set[int]:
    rows = read_stored(directory / "recovery").checkpoints
    return {row.step for row in rows if row.state is CheckpointState.PUBLISHED}


def test_nothing_is_compared_where_nobody_wants_it(tmp_path: Path) -> None:
    cluster, _ = trained(tmp_path / "job", flipping(), MS_COMPARE_REPLICAS="0")
    assert cluster.events(EventKind.REPLICAS_DIFFER) == []
    assert cluster.events(EventKind.GENERATION_INTERRUPTED) == []


def test_ranks_that_training_makes_differ_train_to_their_end_whoever_starts_again(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "page.py").write_text(averaging_by_hand().replace("stops_at", "54"))
    (directory / "held_54").touch()
    with LaunchedCluster(directory, imports=TORCH) as cluster:
        cluster.start(script="page.py")
        cluster.wait(lambda: 40 in committed_steps(cluster), "step 40")
        before = cluster.pid_of("sched")
        cluster.kill_node("sched")
        cluster.wait(lambda: cluster.find("sched") not in (0, before), "the next scheduler")
        cluster.kill_node("1")
        (directory / "held_54").unlink()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        steps = [event.event.step for event in cluster.events(EventKind.PLAN_MADE)]
        assert steps == [0, 0, 40], "all went back once, and then where a rank was lost"
        first, second = (event.event for event in cluster.events(EventKind.REPLICAS_DIFFER))
    assert (first.step, second.step) == (20, 20)
    assert "so training makes them differ" in second.reason
    assert {60, 80} <= committed_steps(cluster)


def committed_steps(cluster: LaunchedCluster) -> set[int]:
    return {event.event.step or 0 for event in cluster.events(EventKind.CHECKPOINT_COMMITTED)}
