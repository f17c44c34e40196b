"""What goes over an exec and what does not, and what becomes of a process that cannot be replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.core.worker.stimuli import Hangs
from recovery.errors import ROWS
from recovery.readable import is_readable
from recovery.worker.exec_in_place import (
    HANGS_VARIABLE,
    TOKEN_VARIABLE,
    close_all_at_exec,
    take_hangs,
    take_token,
)
from tests.pace import HANG_S
from tests.untraced import run_module


@pytest.mark.parametrize(
    ("handed_on", "taken"),
    [
        ("2:411", Hangs(2, 411)),
        ("", Hangs()),
        ("2", Hangs()),
        ("-1:x", Hangs()),
        ("1:\N{SUPERSCRIPT TWO}", Hangs()),
    ],
)
def test_what_was_counted_is_taken_out_of_the_environment(
    handed_on: str, taken: Hangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANGS_VARIABLE, handed_on)

    assert take_hangs() == taken
    assert HANGS_VARIABLE not in os.environ


def test_a_process_whose_interpreter_is_gone_ends_instead_of_hanging_on_with_its_rank(tmp_path: Path) -> None:
    done = run_module(f"tests.worker.replaced_child {tmp_path}")

    assert done.returncode == ROWS["PROCESS_NOT_REPLACED"].exit_code
    assert (
        f"PROCESS_NOT_REPLACED: {tmp_path}/python cannot take this process over" in done.stdout + done.stderr
    )


def test_the_token_is_taken_out_of_the_environment_so_that_no_child_sees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "5ec2e7")

    assert take_token() == "5ec2e7"
    assert TOKEN_VARIABLE not in os.environ
    assert take_token() is None


def test_descriptors_are_marked_for_exec_and_stay_open_until_then() -> None:
    reading, writing = os.pipe()
    try:
        os.set_inheritable(reading, True)
        close_all_at_exec()
        os.write(writing, b"x")
        assert os.read(reading, 1) == b"x"
        assert not os.get_inheritable(reading)
        assert os.get_inheritable(2), "the standard ones are the next program's too"
    finally:
        os.close(reading)
        os.close(writing)


CHANGED = """
import json, os, resource, signal, threading
from recovery import process_conditions
from recovery.core.ids import ResumeToken
from recovery.core.worker.stimuli import Hangs
from recovery.worker.exec_in_place import replace_process
print(json.dumps(process_conditions.note()), flush=True)

def change_and_replace():
    os.chdir("/")
    os.umask(0o077)
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    open("/proc/self/oom_score_adj", "w").write("100")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    if not os.geteuid():
        os.nice(3)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    replace_process(ResumeToken("t" * 32), Hangs(1, 2))

if "MS_RESUME_TOKEN" not in os.environ:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, lambda *_: None)
    thread = threading.Thread(target=change_and_replace)
    thread.start()
    thread.join()
"""


def test_the_next_program_runs_under_the_conditions_of_the_first(tmp_path: Path) -> None:
    """Begun as by nohup: SIGHUP is ignored until the program has a handler of its own."""
    (tmp_path / "train.py").write_text(CHANGED)
    done = subprocess.run(
        ["sh", "-c", f"trap '' HUP; exec {sys.executable} train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, later = map(json.loads, done.stdout.splitlines())
    assert later == first
    assert 1 in first["ignored signals"]


_TIED = """
import os, signal, sys, threading
from recovery import process_conditions
from recovery.core.ids import ResumeToken
from recovery.core.worker.stimuli import Hangs

if "MS_RESUME_TOKEN" not in os.environ:
    process_conditions.tie_to(os.getppid())
    from recovery.worker.exec_in_place import replace_process
    threading.Thread(target=replace_process, args=(ResumeToken("t" * 32), Hangs(1, 2))).start()
else:
    print(os.getpid(), flush=True)
signal.pause()
"""
_LAUNCHES = "import subprocess, sys; subprocess.run([sys.executable, 'train.py'])"


def test_a_process_that_was_replaced_from_another_thread_ends_with_its_launcher(tmp_path: Path) -> None:
    """What ties it to its parent belongs to a thread: it went on with its rank and its GPU."""
    (tmp_path / "train.py").write_text(_TIED)
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHES], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    with launcher:
        assert launcher.stdout is not None
        worker = int(launcher.stdout.readline())
        launcher.kill()
        # Its end of the pipe is closed with it.
        has_ended = is_readable(launcher.stdout, HANG_S) and not launcher.stdout.read()
        if not has_ended:
            os.kill(worker, signal.SIGKILL)
    assert has_ended
