"""What may not be looked at is neither there nor not there, and ends no start by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from recovery.cli.start import _summary
from recovery.launch.presence import Kind, Presence, look_at
from recovery.launch.stored_advice import has_stepped
from tests.needs import needs_tool


def test_each_kind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    kinds = {
        "": Kind.DIRECTORY,
        "file": Kind.FILE,
        "link": Kind.FILE,
        "pipe": Kind.OTHER,
        "nowhere": Kind.ABSENT,
        "gone": Kind.ABSENT,
        "file/x": Kind.ABSENT,
        "a\0b": Kind.ABSENT,
        "loop": Kind.UNKNOWN,
        "n" * 300: Kind.UNKNOWN,
    }
    assert {name: look_at(tmp_path / name).kind for name in kinds} == kinds
    loop = look_at(tmp_path / "loop")
    assert loop == Presence(Kind.UNKNOWN, "Too many levels of symbolic links")
    assert loop.may_be_there
    assert not look_at(tmp_path / "gone").may_be_there


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """Nobody can look at it, root included."""
    return tmp_path / ("n" * 300)


def test_a_recovery_path_that_cannot_be_looked_at_is_said_at_the_end(tmp_path: Path, hidden: Path) -> None:
    environment = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": str(hidden)}
    [said] = _summary(0, "127.0.0.1", tmp_path, environment)
    assert said.startswith("the job's end is not summed up: OSError: [Errno 36] File name too long")
    assert has_stepped(environment), "nobody can know"


def _as_owner(*words: str, directory: Path) -> tuple[int, str]:
    """Run a command to which the modes of files apply, root's too. Gives its exit code, and what it has said."""
    prefix: Sequence[str] = ()
    if os.geteuid() == 0:
        prefix = [needs_tool("setpriv", "util-linux"), "--bounding-set=-dac_override,-dac_read_search"]
    command = [*prefix, sys.executable, "-m", "recovery", *words]
    done = subprocess.run(
        command,
        check=False,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def test_logs_that_this_user_may_not_write_are_refused(tmp_path: Path) -> None:
    """Each reason of each end would have been lost."""
    (tmp_path / "plain.py").write_text("")
    (tmp_path / "logs").mkdir(mode=0o500)
    code, said = _as_owner("run", "--standalone", "plain.py", directory=tmp_path)
    assert code == 22
    assert "SETTING_RANGE: --log_dir='logs': is there, and this user may not write into it" in said
    assert not list((tmp_path / "logs").iterdir())


def test_a_script_where_nobody_may_look_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0)
    code, said = _as_owner("run", "--standalone", "private/plain", directory=tmp_path)
    assert code == 22
    assert "task_script='private/plain': it cannot be looked at (Permission denied)" in said
