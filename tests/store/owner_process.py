"""Owners of a scheduler's store in a process of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HEAD = """
import os, sys, threading
from pathlib import Path
from recovery.store.repository import SchedulerStore
from recovery.store.writer import Writer
from tests.store.any_records import checkpoint, event, job, node
path = Path(sys.argv[1])
"""


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HEAD + code, str(path)]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=300, capture_output=True, text=True)


def killed(path: Path) -> None:
    """Leave what an owner leaves that wrote job 5 and one event and was killed."""
    code = "s = SchedulerStore.open(path); s.apply([job(5), event(5)], wall_ms=1); os.kill(os.getpid(), 9)"
    assert run(code, path).returncode == -signal.SIGKILL
