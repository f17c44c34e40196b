"""Why a rank was lost under live rollback: what its launcher saw of its process, in all that shows it."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.records import EventKind
from recovery.report.node_spans import Doing
from recovery.report.stored import read_stored
from recovery.report.timeline import read_timeline
from tests.cluster.harness import JOB
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.warm.process import TORCH

pytestmark = pytest.mark.cluster

KILLED = "killed by SIGKILL"
LINES_MAX = 2_000
"""Of some fifty looks."""


def shown_by_top(path: Path, mark: str) -> bool:
    """Does `recovery top` show this of a job under way?"""
    command = [sys.executable, "-m", "recovery", "top", str(path), "--interval=0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as screen:
        assert screen.stdout is not None
        try:
            return any(mark in line for line in itertools.islice(screen.stdout, LINES_MAX))
        finally:
            screen.kill()


@pytest.mark.parametrize("held", ["HELD_BEFORE", "HELD_STEP"], ids=["in a collective", "before it"])
def test_a_killed_rank_is_named_with_its_signal_and_the_survivor_is_not_lost(
    tmp_path: Path, held: str
) -> None:
    """Its peer's collective breaks at the same moment, and says so first where the machine is slow."""
    shutil.copy(JOB, tmp_path)
    environment = {"MS_ROLLBACK": "live", f"JOB_{held}": "26"}
    with LaunchedCluster(tmp_path, environment=environment, imports=TORCH) as cluster:
        cluster.start(script=JOB.name)
        cluster.wait(lambda: cluster.step_of_all() >= 25, "all ranks in one step")
        cluster.kill_node("1")
        cluster.wait_event(EventKind.STATE_LOADED, count=4)
        assert shown_by_top(tmp_path / "recovery", KILLED)
        cluster.go_on()
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()

    timeline, _ = read_timeline(read_stored(tmp_path / "recovery"))
    assert [one.because_text for one in timeline.recoveries] == [f"1 lost: {KILLED}"]
    lost = {node for node, spans in timeline.spans.items() if any(span.doing is Doing.LOST for span in spans)}
    assert lost == {"1"}
    incident = json.loads((tmp_path / "logs/incident-1.json").read_text())
    first = incident["first"]
    assert (first["rank"], first["status"], incident["followed"]) == (1, KILLED, [])
