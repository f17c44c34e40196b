"""The examples' own scripts, as a person uses them: start the job, kill processes, start again whatever is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.shell_example import ShellExample

pytestmark = pytest.mark.cluster


def test_recover_without_a_name_starts_exactly_what_is_lost_and_training_ends_alike(tmp_path: Path) -> None:
    with ShellExample("disaster_recover", tmp_path, {"STEP_MS": "50"}) as example:
        example.script("run.sh")
        assert example.script("recover.sh") == "nothing is lost\n"

        example.wait(lambda: example.count(EventKind.CHECKPOINT_COMMITTED) >= 2, "second common checkpoint")
        example.kill("worker_1")
        example.kill("sched")
        said = example.script("recover.sh")
        assert [line.split()[1] for line in said.splitlines()] == ["sched", "worker_1"]

        first, second = example.final_digests()
        assert first == second
        assert example.count(EventKind.PLAN_MADE) == 2
        assert example.count(EventKind.SCHEDULER_RESTARTED) == 1
