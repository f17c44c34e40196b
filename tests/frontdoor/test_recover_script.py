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


def test_a_job_whose_scheduler_has_no_store_yet_has_lost_nothing_or_who_has_no_process(
    tmp_path: Path,
) -> None:
    """Right behind run.sh: workers and scheduler run, and import."""
    (tmp_path / "device").mkdir()
    held = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", held, "train.py"], stdin=subprocess.PIPE) as process:
        (tmp_path / "device" / "worker_0.pid").write_text(str(process.pid))
        lost = [sys.executable, str(ROOT / "examples" / "disaster_recover" / "lost.py"), "recovery"]
        none = subprocess.run(lost, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        (tmp_path / "device" / "worker_1.pid").write_text("0")
        one = subprocess.run(lost, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        process.communicate()
    nobody = subprocess.run(lost, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert (none.stdout, one.stdout) == ("", "worker_1\n")
    assert nobody.returncode != 0, "nobody runs, and nobody can say what the job was"
    assert "recovery" in nobody.stderr
