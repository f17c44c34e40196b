"""An exit code that is known only at the end of a process is its own, and whatever was registered with atexit has run once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import atexit
atexit.register(print, "registered first")
import ctypes
import sys
import threading
from recovery.training import process_end

atexit.register(process_end.end_by, 48, "this is why")
atexit.register(print, "registered last")
threading.Thread(target=threading.Event().wait, daemon=True).start()
# Stays in the buffer of the C library until that is written.
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fputs(b"by C", ctypes.c_void_p(libc.fopen(b"written", b"w")))
sys.exit({own})
"""


@pytest.mark.parametrize("own", [0, 3])
def test_every_handler_runs_once_and_the_exit_code_is_the_one_given(tmp_path: Path, own: int) -> None:
    command = [sys.executable, "-c", _PROGRAM.format(own=own)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 48, done.stderr
    assert done.stdout == "registered last\nregistered first\n"
    assert "Traceback" not in done.stderr
    assert (tmp_path / "written").read_text() == "by C"
