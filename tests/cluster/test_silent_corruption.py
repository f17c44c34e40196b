"""A bit of one rank's weights flips, and nothing crashes: the rank is named at the next save, and training ends as if it had not flipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recovery.core.records import EventKind
from recovery.report.stored import read_stored
from recovery.report.timeline import read_timeline
from tests.cluster.test_three_lines import changed, trained

pytestmark = pytest.mark.cluster

_BEHIND = "            optimizer.step()\n"
_FLIP = """            import pathlib
            taken.append(1)
            if dist.get_rank() == 1 and len(taken) == 30 and not pathlib.Path("flipped").exists():
                pathlib.Path("flipped").touch()
                next(model.parameters()).detach().view(torch.int32)[0, 0] ^= 1 << 3
"""


def flipping() -> str:
    """The page's script, in which a bit of rank 1's weights flips once."""
    script, loop = changed(), "    for rows, targets in rt.steps"
    assert script.count(_BEHIND) == script.count(loop) == 1
    return script.replace(loop, f"    taken = []\n{loop}").replace(_BEHIND, f"{_BEHIND}{_FLIP}")


def test_rank_whose_bit_has_flipped_is_named_and_all_go_back(tmp_path: Path) -> None:
    _, sound = trained(tmp_path / "sound", changed())
    cluster, weights = trained(tmp_path / "job", flipping(), MS_COMPARE_REPLICAS="1")

    [event] = cluster.events(EventKind.REPLICAS_DIFFER)
    assert event.event.step == 40
    assert "model[0].weight" in event.event.reason
    state = read_stored(tmp_path / "job" / "recovery")
    [recovery] = read_timeline(state)[0].recoveries
    assert recovery.cause == "replicas"
    assert recovery.lost_steps in (20, 21), "it flipped behind step 30, and step 20 was sound"
    assert weights.keys() == sound.keys()
    assert all(torch.equal(weights[name], sound[name]) for name in sound)


def test_nothing_is_compared_that_nobody_has_asked_for(tmp_path: Path) -> None:
    cluster, _ = trained(tmp_path / "job", flipping())
    assert cluster.events(EventKind.REPLICAS_DIFFER) == []
    assert cluster.events(EventKind.GENERATION_INTERRUPTED) == []
