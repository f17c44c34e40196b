"""Who looks for a step of ours in what a framework wrote is told whose it is, and how it is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.checkpoint import whole_step
from recovery.errors import CheckpointManifestError
from tests.checkpoint.test_folders import adopted, written

COMMAND = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"


@pytest.mark.parametrize("is_adopted", [True, False])
def test_a_folder_of_dcp_is_named_with_its_command(tmp_path: Path, is_adopted: bool) -> None:
    nine, ten = (written(tmp_path / f"ckpt/step_{step:02}") for step in (9, 10))
    if is_adopted:
        adopted(nine, step=9)
        adopted(ten, step=10)
    with pytest.raises(CheckpointManifestError, match=f"it is a folder that a framework wrote.*{COMMAND}"):
        whole_step.find(ten)
    with pytest.raises(CheckpointManifestError, match=f"such as step_10, .*{COMMAND} {ten} "):
        whole_step.find(tmp_path / "ckpt")
    if is_adopted:
        with pytest.raises(CheckpointManifestError, match="such as step_09, "):
            whole_step.find(tmp_path / "ckpt", step=9)


def test_a_folder_of_another_framework_is_told_by_its_manifest(tmp_path: Path) -> None:
    folder = written(tmp_path / "checkpoint_4", {"pytorch_model.bin": b"w", "random_states_1.pkl": b"r"})
    adopted(folder)
    for directory in (folder, tmp_path):
        with pytest.raises(CheckpointManifestError, match="so that framework loads and exports") as refused:
            whole_step.find(directory)
        assert "dcp" not in str(refused.value)


def test_a_directory_of_neither_holds_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere.json").write_text("{}")
    with pytest.raises(CheckpointManifestError, match="it holds no checkpoint"):
        whole_step.find(tmp_path / "elsewhere")
