"""Where a page is tried: a user's directory, in a user's environment, and what an undisturbed job leaves there."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.cluster import page_job
from tests.pace import HANG_S


def of_a_user() -> dict[str, str]:
    """Nothing of a test is in it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("MS_", "JOB_", "SLURM_"))}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}


def prepare(directory: Path) -> None:
    """Let the script be there; it waits behind its first checkpoint."""
    shutil.copy(page_job.__file__, directory / "train.py")
    (directory / page_job.HELD).touch()


def go_on(directory: Path) -> None:
    """Let it wait no more."""
    (directory / page_job.HELD).unlink()


def has_saved(directory: Path, workers: int) -> bool:
    """Has every rank saved once?"""
    folders = [directory / "checkpoints" / str(rank) for rank in range(workers)]
    return all(any(folder.glob("*.ckpt")) for folder in folders)


def check_bits(directory: Path, workers: int, *arguments: str) -> None:
    """They are those of a job that nobody has disturbed."""
    undisturbed = directory / "undisturbed"
    undisturbed.mkdir()
    shutil.copy(page_job.__file__, undisturbed / "train.py")
    line = f"recovery run --standalone --nproc-per-node={workers} train.py"
    subprocess.run(
        (*shlex.split(line), *arguments), cwd=undisturbed, env=of_a_user(), check=True, timeout=HANG_S
    )
    expected, found = _weights(undisturbed), _weights(directory)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def text(path: Path) -> str:
    """Of a file that may not be there yet."""
    return path.read_text(errors="replace") if path.exists() else ""


def _weights(directory: Path) -> Mapping[str, torch.Tensor]:
    found: Mapping[str, torch.Tensor] = torch.load(directory / "model.pt")
    return found
