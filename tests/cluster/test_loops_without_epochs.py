"""The page on loops without epochs: its script trains as it stands, and behind deaths it ends with the same bits, its own numbers among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/howto/loops_without_epochs.md"
HELD = (25, 45)
"""Steps that wait for a file of their number: two checkpoints stand before each."""
STEP = "        optimizer.step()\n"
HOLD = f"""        while step in {HELD} and not __import__("os").path.exists(str(step)):
            session.check()
            __import__("time").sleep(0.01)
"""
ITERATOR = {
    "rt.steps(get_batch, ": "rt.steps(batches(), ",
    "    def loss_of(": "    def batches():\n        while True:\n            yield get_batch(0)\n\n    def loss_of(",
}


def script(way: str) -> str:
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    text = found[1]
    changes = {STEP: STEP + HOLD, **(ITERATOR if way == "an iterator" else {})}
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def trained(directory: Path, text: str, *killed: str) -> tuple[LaunchedCluster, dict[str, torch.Tensor]]:
    directory.mkdir()
    (directory / "page.py").write_text(text)
    with LaunchedCluster(directory, imports=TORCH) as cluster:
        cluster.start(script="page.py")
        for number, (step, node) in enumerate(zip(HELD, killed, strict=False), start=1):
            cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2 * number)
            cluster.kill_node(node)
            cluster.wait_event(EventKind.PLAN_MADE, count=1 + number)
            (directory / str(step)).touch()
        for step in HELD:
            (directory / str(step)).touch()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        return cluster, torch.load(directory / "model.pt")


@pytest.mark.parametrize("way", ["a function", "an iterator"])
def test_the_pages_script_ends_with_the_same_bits_behind_a_death_of_either_rank(
    tmp_path: Path, way: str
) -> None:
    _, expected = trained(tmp_path / "undisturbed", script(way))
    cluster, found = trained(tmp_path / "disturbed", script(way), "0", "1")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert expected["best"][1] > 0
    assert re.search(r"; 2 recoveries, \d+ steps? done again$", cluster.log(LAUNCHER), re.MULTILINE)
