"""The page on DeepSpeed: its script trains as it stands, and a death changes no bit of what it ends with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.cluster.launched import LAUNCHER
from tests.cluster.test_three_lines import trained
from tests.needs import needs_package

pytestmark = [pytest.mark.trainers, pytest.mark.cluster]

PAGE = Path(__file__).parents[2] / "docs/howto/deepspeed.md"
STAGE = '"stage": 1'
STEP = "    engine.step()\n"
IMPORT = "import deepspeed\n"
NOT_COMPILED = 'deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False\n'
"""An operator of inference on a CPU, which its first start would compile for minutes."""


def script(stage: int, pause_s: float) -> str:
    """The page's, of a stage of ZeRO, whose steps take so long."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    text = found[1]
    changed = {
        IMPORT: IMPORT + NOT_COMPILED,
        STAGE: f'"stage": {stage}',
        STEP: f'{STEP}    __import__("time").sleep({pause_s})\n',
    }
    for old, new in changed.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("stage", [0, 1])
def test_a_death_changes_no_bit_of_a_training_with_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    needs_package("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    _, expected = trained(tmp_path / "undisturbed", script(stage, 0))
    cluster, found = trained(tmp_path / "disturbed", script(stage, 0.03), "1", "0")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    started = re.findall(r"^started (worker_\d) ", cluster.log(LAUNCHER), re.MULTILINE)
    assert sorted(started) == ["worker_0", "worker_0", "worker_1", "worker_1"], (
        "a survivor's process was replaced"
    )
