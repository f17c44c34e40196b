"""`recovery run`: torchrun's command line as it is typed, with real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.report import stored

pytestmark = pytest.mark.cluster

SCRIPT = """\
import os, pathlib, sys
names = ("RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID")
start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
pathlib.Path(f"{os.environ['RANK']}.{start}").write_text(" ".join(os.environ[name] for name in names))
sys.exit(3 if os.environ["RANK"] == "1" and start == 0 else 0)
"""


def test_an_unchanged_script_is_started_as_torchrun_would_and_its_world_again_after_a_failure(
    tmp_path: Path,
) -> None:
    (tmp_path / "plain.py").write_text(SCRIPT)
    line = [shutil.which("recovery", path=str(Path(sys.executable).parent)) or "recovery", "run"]
    line += ["--standalone", "--nproc-per-node=2", "--rdzv-id=mine", "--role=trainer", "-m", "plain"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "recovery is on: its state is in ./recovery" in done.stdout
    for rank in (0, 1):
        expected = f"{rank} {rank} 2 2 0 trainer mine"
        assert (tmp_path / f"{rank}.1").read_text() == expected
    assert [
        generation.generation for generation in stored.read_stored(tmp_path / "recovery").generations
    ] == [1, 2]
    assert (tmp_path / "logs" / "worker_0.log").exists()
