"""A launcher that goes to the background says so once it is there, and else why it is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from recovery.readable import is_readable
from tests.pace import wait_for

_HANDS_OVER = """
import resource, signal, sys
from pathlib import Path
from recovery.errors import RecoveryError
from recovery.launch import background

directory, before, work = Path(sys.argv[1]), *sys.argv[2:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
exec(before)
try:
    print(background.hand_over(directory, lambda: eval(work), stop_grace_s=1.0))
except RecoveryError as error:
    print(error)
    sys.exit(error.exit_code)
"""
_NO_FILE_TAKES_ANYTHING = "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"


def _hand_over(directory: Path, before: str = "", work: str = "0") -> tuple[int, str]:
    """Gives the exit code of the process in front, and what it has said."""
    command = [sys.executable, "-c", _HANDS_OVER, str(directory), before, work]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def _await_end(pid: str) -> None:
    wait_for(lambda: not psutil.pid_exists(int(pid)), "end of the process in the background")


def test_who_cannot_write_its_note_begins_nothing(tmp_path: Path) -> None:
    """On a full disk it was said to run, and nothing ran."""
    code, said = _hand_over(tmp_path, _NO_FILE_TAKES_ANYTHING, f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert code == 22
    assert said == (
        f"SETTING_RANGE: --log_dir='{tmp_path}': cannot be written ({tmp_path}/agent.json: File too large), so nothing was started. "
        "Give a directory that this user may write, on a disk that is not full.\n"
    )
    assert not (tmp_path / "ran").exists()


def test_who_cannot_open_its_log_begins_nothing_and_leaves_anothers_note(tmp_path: Path) -> None:
    (tmp_path / "agent.log").mkdir()
    (tmp_path / "agent.json").write_text("of another")
    code, said = _hand_over(tmp_path)
    assert code == 22
    assert f"cannot be written ({tmp_path}/agent.log: Is a directory)" in said
    assert (tmp_path / "agent.json").read_text() == "of another"


def test_who_finds_a_pipe_without_a_reader_at_the_name_of_its_log_begins_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agent.log")
    code, said = _hand_over(tmp_path)
    assert code == 22
    assert f"cannot be written ({tmp_path}/agent.log: No such device or address)" in said


def test_who_ends_before_it_has_begun_is_no_success(tmp_path: Path) -> None:
    code, said = _hand_over(tmp_path, "background.psutil.Process = lambda: sys.exit(3)")
    assert code == 71
    assert "LAUNCH_FAILED: the launcher in the background: its process has ended before it began." in said


def test_a_process_that_cannot_be_had_is_no_success(tmp_path: Path) -> None:
    no_process = "import os\ndef refuse(): raise BlockingIOError(11, 'Resource temporarily unavailable')\nos.fork = refuse"
    code, said = _hand_over(tmp_path, no_process)
    assert code == 71
    assert "Resource temporarily unavailable. Start it again, or with --join=True." in said


def test_what_its_work_raises_stands_in_its_log(tmp_path: Path) -> None:
    code, pid = _hand_over(tmp_path, work="1 / 0")
    assert code == 0
    _await_end(pid)
    assert "ZeroDivisionError" in (tmp_path / "agent.log").read_text()
    assert not (tmp_path / "agent.json").exists()


def test_it_holds_nothing_open_that_was_open_where_it_was_begun(tmp_path: Path) -> None:
    """A shell that waits for the end of a pipe, or for a lock on a descriptor, would wait for the job."""
    hears, says = os.pipe()
    command = [sys.executable, "-c", _HANDS_OVER, str(tmp_path), "", "__import__('time').sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[says]) as front:
        os.close(says)
        assert front.stdout is not None
        pid = front.stdout.readline()
        try:
            assert is_readable(hears, 60), "its last writer has closed it"
        finally:
            os.kill(int(pid), signal.SIGKILL)
            os.close(hears)
