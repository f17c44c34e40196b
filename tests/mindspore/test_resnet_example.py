"""ResNet-50/CIFAR-10 with MindSpore, made small: weights and moving averages end as if no worker had been killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.core.records import EventKind
from tests.cluster.shell_example import ShellExample

pytestmark = pytest.mark.mindspore

SMALL = ("--resize", "32", "--width", "8", "--blocks", "1,1,1,1", "--batch_size", "16", "--samples", "320")


def test_a_worker_that_was_killed_comes_back_and_moving_averages_end_alike(tmp_path: Path) -> None:
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
    shared = {
        "FRAMEWORK": "mindspore",
        "XDG_CACHE_HOME": str(tmp_path),
        "SAVE_STEPS": "5",
        "EPOCHS": "3",
        # A compilation keeps the interpreter to itself for as long as it takes.
        "MS_NODE_TIMEOUT": "60",
    }
    with ShellExample("resnet50_cifar10", tmp_path / "undisturbed", {**shared, "STEP_MS": "0"}) as example:
        example.script("run.sh", *SMALL)
        expected = example.final_digests()

    with ShellExample("resnet50_cifar10", tmp_path / "disturbed", {**shared, "STEP_MS": "300"}) as example:
        example.script("run.sh", *SMALL)
        example.wait(lambda: example.count(EventKind.CHECKPOINT_COMMITTED) >= 2, "second common checkpoint")
        example.kill("worker_1")
        assert example.script("recover.sh").split()[1] == "worker_1"

        assert example.final_digests() == expected
        assert expected[0] != expected[1], "each rank has averages of its own"
        assert example.count(EventKind.PLAN_MADE) == 2
