"""The package is replaced while a job runs: nobody who is well ends by it, and who dies comes back once it is there again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import recovery
from tests.cluster import page_place
from tests.cluster.page_place import check_bits, has_saved, of_a_user, text
from tests.pace import HANG_S, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_NEVER_BEGAN = "it never began; it is tried again, which uses up no restart"


def test_a_worker_dies_while_the_package_is_away(tmp_path: Path) -> None:
    package, away, out = tmp_path / "site" / "recovery", tmp_path / "away", tmp_path / "out"
    shutil.copytree(Path(recovery.__file__).parent, package)
    page_place.prepare(tmp_path)
    line = (sys.executable, "-m", "recovery", "run", "--standalone", "--nproc-per-node=2", "train.py")
    environment = {**of_a_user(), "PYTHONPATH": str(package.parent)}
    with (
        out.open("wb") as said,
        subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=said, stderr=said) as launcher,
    ):
        try:
            wait_for(lambda: has_saved(tmp_path, 2), "first checkpoint of all", lambda: text(out))
            package.rename(away)
            os.kill(_worker(launcher.pid, "1"), signal.SIGKILL)
            wait_for(lambda: _NEVER_BEGAN in text(out), "a start that never began", lambda: text(out))
            away.rename(package)
            page_place.go_on(tmp_path)
            assert launcher.wait(HANG_S) == 0, text(out)
        finally:
            launcher.terminate()
    assert text(out).count("started worker_0 ") == 1, "who was well went on"
    check_bits(tmp_path, 2)


def _worker(launcher: int, node_id: str) -> int:
    for process in psutil.Process(launcher).children(recursive=True):
        if process.environ().get("MS_NODE_ID") == node_id:
            return process.pid
    raise AssertionError(f"no process of {node_id}")
