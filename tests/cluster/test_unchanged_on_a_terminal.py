"""A script that knows nothing of recovery on a terminal: nothing is shown as zero that nobody knows, and rank 0's own bar is seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.cluster.test_launcher import ON_A_TERMINAL, assert_nothing_left

pytestmark = pytest.mark.cluster

DRAWS = """
import os, sys, time
from pathlib import Path

def wait(name):
    while not Path(name).exists():
        time.sleep(0.01)

wait("draw")
for done in range(0, 38):
    print(f"\\rrank {os.environ['RANK']}: {done:3}%|{'#' * (done // 10):10}| {done}/100", end="", file=sys.stderr, flush=True)
wait("print")
print("\\na line of its own", flush=True)
wait("go_on")
"""
"""Each rank draws as tqdm does: on stderr, one state over the other, without an end of the line."""
LINE = "training, by a script that tells no steps"
NEWEST = "rank 0:  37%|###       | 37/100"
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_nothing_unknown_is_shown_as_zero_and_the_bar_of_rank_0_is_seen(tmp_path: Path) -> None:
    environment = {"TERM": "xterm-256color", "COLUMNS": "160"}
    with LaunchedCluster(tmp_path, environment=environment) as cluster:
        (tmp_path / "draws.py").write_text(DRAWS)
        cluster.start("--tee=3", script="draws.py", prefix=ON_A_TERMINAL)

        def last() -> str:
            """What stands in the terminal's last line."""
            return _STEERING.sub("", cluster.log(LAUNCHER).rpartition("\x1b[2K")[2]).strip()

        cluster.wait(lambda: LINE in last(), "that it trains")
        assert re.fullmatch(rf"{LINE}  2/2 ranks  generation 1", last())
        (tmp_path / "draw").touch()
        cluster.wait(lambda: last() == NEWEST, "the newest state of rank 0's bar in the last line")
        (tmp_path / "print").touch()
        cluster.wait(lambda: LINE in last(), "our line again, since the bar has ended")
        cluster.go_on()

        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()
        shown = _STEERING.sub("", cluster.log(LAUNCHER))
        assert "first step" not in shown
        assert "goodput" not in shown, "nobody knows how far it was"
        assert f"[0] {NEWEST}" in shown, "its last state stays above"
        assert_nothing_left(cluster)
