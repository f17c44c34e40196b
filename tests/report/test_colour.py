"""Colour and completion, by the conventions: NO_COLOR takes colour from every command, FORCE_COLOR gives it to a pipe, and neither makes a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.views import unpacked

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]m")
JOB = Path(__file__).parents[1] / "golden" / "2026-11-26" / "ended.tar.xz"
DEADLINE_S = 120.0


def recovery(*words: str, **environment: str) -> str:
    """What a command writes into a pipe."""
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_COLOR")}
    command = [sys.executable, "-m", "recovery", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env={**plain, **environment}
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("words", [["--help"], ["msrun", "--help"], ["status", "JOB"]])
def test_each_command_follows_no_color_and_force_color(tmp_path: Path, words: list[str]) -> None:
    path = str(unpacked(JOB, tmp_path)) if "JOB" in words else ""
    typed = [word.replace("JOB", path) for word in words]
    assert COLOUR.search(recovery(*typed, FORCE_COLOR="1"))
    assert not COLOUR.search(recovery(*typed))
    assert not COLOUR.search(recovery(*typed, FORCE_COLOR="1", NO_COLOR="1"))


def test_top_takes_no_screen_where_force_color_colours_a_pipe(tmp_path: Path) -> None:
    path = str(unpacked(JOB, tmp_path))
    with subprocess.Popen(
        [sys.executable, "-m", "recovery", "top", path, "--interval=0.1"],
        stdout=subprocess.PIPE,
        env={**os.environ, "FORCE_COLOR": "1"},
    ) as top:
        assert top.stdout is not None
        shown = b""
        while shown.count(b"state") < 2:
            line = top.stdout.readline()
            assert line, f"it ended with {top.wait()}"
            shown += line
        top.send_signal(signal.SIGINT)
        top.stdout.read()
        assert top.wait(DEADLINE_S) == 0
    assert COLOUR.search(shown.decode())
    assert b"\x1b[?" not in shown, "one below the other"
    assert b"\x1b[2K" not in shown


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("st", ["stop", "status", "steps"]),
        ("status --", ["--connect", "--json", "--help"]),
        ("msrun --progr", ["--progress"]),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    words = f"recovery {typed}"
    asked = {
        "_RECOVERY_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = Path(sys.executable).with_name("recovery")
    done = subprocess.run(
        [program], capture_output=True, text=True, timeout=DEADLINE_S, check=True, env={**os.environ, **asked}
    )
    assert done.stdout.split() == offered


def test_completion_is_installed_into_the_home_of_its_user(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("recovery")
    # The shell is that of the parent process.
    subprocess.run(
        ["bash", "-c", f"{program} --install-completion; exit $?"],
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    script = tmp_path / ".bash_completions" / "recovery.sh"
    assert f"source '{script}'" in (tmp_path / ".bashrc").read_text()
    subprocess.run(["bash", "-c", f"source {script}; complete -p recovery"], check=True, capture_output=True)
