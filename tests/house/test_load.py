"""What a `make test` that is asked to end leaves behind: nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.files import ROOT
from tests.pace import wait_for

WAITS = "import os, pathlib, time; pathlib.Path('begun').write_text(str(os.getpid())); time.sleep(600)"


def behind(*command: str, place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests/load.py"), "--behind", *command],
        cwd=place,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_is_told_what_asks_its_run_to_end(tmp_path: Path, number: signal.Signals) -> None:
    with behind(sys.executable, "-c", WAITS, place=tmp_path) as run:
        wait_for(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text(), "the command")
        run.send_signal(number)
        said, _ = run.communicate()
    assert run.returncode == 128 + number
    assert "load " in said
    assert not Path("/proc", (tmp_path / "begun").read_text()).exists()


@pytest.mark.parametrize(("code", "is_said"), [(0, False), (3, True)])
def test_the_load_is_printed_where_a_command_fails(tmp_path: Path, *, code: int, is_said: bool) -> None:
    with behind(sys.executable, "-c", f"raise SystemExit({code})", place=tmp_path) as run:
        said, _ = run.communicate()
    assert (run.returncode, "load " in said) == (code, is_said)


def test_no_shell_stands_between_make_and_the_tests() -> None:
    """It would end alone, and leave them running."""
    starts = [line for line in (ROOT / "Makefile").read_text().splitlines() if "-m pytest" in line]
    assert starts
    assert [line for line in starts if "exec $(" not in line] == []
