"""recover.sh without a name starts what is lost, and where nobody can say what that is it does not say that nothing is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.untraced import ROOT


@pytest.mark.parametrize("example", ["disaster_recover", "resnet50_cifar10"])
def test_a_store_that_cannot_be_read_is_no_job_without_losses(tmp_path: Path, example: str) -> None:
    (tmp_path / "scheduler.db").write_bytes(b"no database")
    done = subprocess.run(
        ["bash", str(ROOT / "examples" / example / "recover.sh")],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable, "MS_RECOVERY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode != 0
    assert "STORE_NOT_OURS" in done.stderr
    assert done.stdout == ""
