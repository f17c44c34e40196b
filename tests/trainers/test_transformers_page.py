"""The scripts of docs/howto/trainers.md run as they stand there, and a death in them changes no bit of the model that they save."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.trainers.transformers_cluster import TransformersCluster

pytestmark = pytest.mark.trainers

PAGE = Path(__file__).parents[2] / "docs/howto/trainers.md"
FOR_A_READER = "from tests.trainers.tiny_training import Net, Samples\n"
"""A reader has a model and data of their own."""
SLOW = """\
import time
import torch.optim
step_at_once = torch.optim.AdamW.step
torch.optim.AdamW.step = lambda *given, **named: (time.sleep(0.05), step_at_once(*given, **named))[1]
"""
"""Every step takes long enough to be in when something dies."""


def script(section: str) -> str:
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2]
    found = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_a_script_with_the_trainer_changes_in_two_lines() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## The Trainer\n")[2]
    found = re.search(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    added = [line[1:] for line in found[1].splitlines() if line.startswith("+")]
    assert len(added) == 2
    assert all(line in script("The Trainer").splitlines() for line in added)


class PageCluster(TransformersCluster):
    """Runs a script of the page."""

    text = ""

    @property
    @override
    def command(self) -> Sequence[str]:
        path = self.directory / "train.py"
        path.write_text(FOR_A_READER + self.text)
        return (sys.executable, str(path))


@pytest.mark.parametrize("section", ["The Trainer", "Accelerate"])
def test_a_script_of_the_page_ends_with_the_same_bits_after_a_death(tmp_path: Path, section: str) -> None:
    models = []
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
        with PageCluster(tmp_path / name) as cluster:
            cluster.text = script(section) if name == "undisturbed" else SLOW + script(section)
            cluster.start()
            if name == "disturbed":
                cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
                cluster.kill_and_relaunch("worker_1")
            cluster.wait_end()
            plans = [stored.event.step for stored in cluster.events(EventKind.PLAN_MADE)]
            assert len(plans) == (1 if name == "undisturbed" else 2)
            models.append((cluster.directory / "trained/model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_the_launcher_starts_a_lost_worker_of_the_page_again(tmp_path: Path) -> None:
    text = FOR_A_READER + SLOW + script("The Trainer")
    (tmp_path / "page.py").write_text(text)
    with LaunchedCluster(tmp_path, environment={"OMP_NUM_THREADS": "1"}) as cluster:
        cluster.start(script="page.py")
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED)
        survivor = cluster.pid_of("0")
        cluster.kill_node("1")
        cluster.wait_event(EventKind.PLAN_MADE, count=2)
        assert cluster.pid_of("0") == survivor
        cluster.wait_end()
        assert (cluster.directory / "trained/model.safetensors").exists()
        assert "workers are forked from it" in cluster.log(LAUNCHER)
