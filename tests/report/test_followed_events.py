"""`recovery events --follow` ends well by Ctrl+C, whatever it is about to print."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import termios
from pathlib import Path

from tests.pace import wait_for
from tests.report.long_job import write
from tests.warm.process import Process

EVENTS = 2_000
"""They do not fit into a pipe that nobody reads (64 KiB, pipe(7))."""
MUCH_BYTES = 32_768


def test_ctrl_c_while_it_prints_what_there_was_ends_it_well(tmp_path: Path) -> None:
    write(tmp_path / "recovery", 200, failures=4)
    words = ("events", str(tmp_path / "recovery"), "--follow", f"--limit={EVENTS}", "--format=ndjson")
    with Process([sys.executable, "-m", "recovery", *words], stdout=subprocess.PIPE, text=True) as follow:
        assert follow.stdout is not None
        pipe = follow.stdout.fileno()
        wait_for(lambda: waiting_bytes(pipe) > MUCH_BYTES, "output")
        follow.send_signal(signal.SIGINT)
        lines = follow.stdout.readlines()
        assert follow.wait() == 0
    assert len(lines) < EVENTS, "it was in the middle of it"


def waiting_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
