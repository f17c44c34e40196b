"""Kills of scripts with trainers under the launcher, the same bits and samples. Many more: `python -m tests.soak.scripts --kills 200`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.script_faces import Form
from tests.soak.scripts import Soak

pytestmark = [pytest.mark.trainers, pytest.mark.cluster, pytest.mark.slow, pytest.mark.faults]

FORMS = {
    "lightning": ("rows", "accumulation", "backbone", "hooks"),
    "transformers": ("set_epoch", "asks", "best"),
    "accelerate": ("rows", "accumulates", "adds"),
}


@pytest.mark.parametrize("face", FORMS)
def test_a_kill_changes_neither_bits_nor_samples(tmp_path: Path, face: str) -> None:
    struck = Soak(tmp_path).train(Form(face, FORMS[face], workers=2), kills=1, seed=1)

    assert not struck.fault
    assert struck.done.total() == 1
