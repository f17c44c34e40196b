"""The end of a process waits for the save under way, whichever way it ends, and for one that a disk holds not for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ENDS = """
import atexit, sys, threading
from pathlib import Path
from recovery.training import save_thread
from recovery.training.save_thread import SaveThread
from types import SimpleNamespace

saving, held = threading.Event(), threading.Event()


def work():
    saving.set()
    held.wait(LONG)
    Path(sys.argv[1]).write_text("broken" if writer_has_ended else "whole")


writer_has_ended = []
# As the process that writes for this one is ended: from its first save on.
atexit.register(writer_has_ended.append, True)
save_thread.END_S = END_S
thread = SaveThread("saves")
thread.begin(SimpleNamespace(step=7), work)
assert saving.wait(60)
HOW
"""


@pytest.mark.parametrize("how", ["", "sys.exit(143)", "raise KeyboardInterrupt", "raise ValueError('x')"])
def test_the_end_of_a_process_waits_for_the_save_under_way(how: str, tmp_path: Path) -> None:
    ended = end(how, tmp_path, long=0.5, end_s=60)
    assert (tmp_path / "saved").read_text() == "whole"
    assert "save_not_awaited" not in ended.stderr
    assert ended.returncode == {"": 0, "sys.exit(143)": 143, "raise KeyboardInterrupt": -2}.get(how, 1)


def test_a_save_that_a_disk_holds_does_not_hold_the_end_of_its_process(tmp_path: Path) -> None:
    ended = end("sys.exit(143)", tmp_path, long=3_600, end_s=0.05)
    assert ended.returncode == 143
    assert "event=save_not_awaited step=7" in ended.stderr


def end(how: str, directory: Path, *, long: float, end_s: float) -> subprocess.CompletedProcess[str]:
    source = _ENDS.replace("END_S\n", f"{end_s}\n").replace("LONG", str(long)).replace("HOW", how)
    return subprocess.run(
        [sys.executable, "-c", source, str(directory / "saved")],
        cwd=Path(__file__).parents[2],
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )
