"""`recovery open` as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

WAIT_S = 120


def begun(*words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Begin it, with these of a job's variables alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
    return subprocess.Popen(
        [sys.executable, "-m", "recovery", "open", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, **(environment or {})},
    )


@contextlib.contextmanager
def opened(*words: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve a job's page; gives the link."""
    with begun(*map(str, words), environment=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
