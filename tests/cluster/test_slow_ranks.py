"""A rank that all others wait for in each step is named, with the part of its own work that is slow, and training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_three_lines import changed
from tests.warm.process import TORCH

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
_LOADER = "    loader = DataLoader(data, batch_size=32, sampler=sampler"
_SLOW_LOADER = f"""
    def collate(rows):
        __import__("time").sleep(0.06 * dist.get_rank())
        return torch.utils.data.default_collate(rows)

{_LOADER}, collate_fn=collate"""
_LOSS = "            loss = mse_loss"


@pytest.mark.parametrize(
    ("part", "line", "slow_line"),
    [
        ("data", _LOADER, _SLOW_LOADER),
        ("compute", _LOSS, f'            __import__("time").sleep(0.06 * dist.get_rank())\n{_LOSS}'),
    ],
)
def test_a_slow_rank_is_named_with_what_is_slow(tmp_path: Path, part: str, line: str, slow_line: str) -> None:
    script = changed().replace("epochs=3", "epochs=12")
    assert script.count(line) == 1
    (tmp_path / "page.py").write_text(script.replace(line, slow_line))
    with LaunchedCluster(tmp_path, imports=TORCH) as cluster:
        cluster.start(script="page.py")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()

        [found] = cluster.events(EventKind.STRAGGLER_FOUND)
        assert found.event.rank == 1
        assert f"; most of it in {part}" in found.event.reason
        assert len(cluster.events(EventKind.PLAN_MADE)) == 1, "nothing is replaced for it"
