"""The line below all others, on real terminals: it never waits for one, never dies of one, and is nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.launch.screen import Screen

DEADLINE_S = 120.0
SPEAKER = """
import sys
from rich.text import Text
from recovery.launch import console, status_line
from contextlib import nullcontext
with status_line.shown() if status_line.is_wanted() else nullcontext() as line:
    for number in range(int(sys.argv[1])):
        if line is not None:
            line.draw(Text(f"step {number}", style="green"))
        for shown in console.lines_of(f"\\x1b[2Jwaits\\rrank {number}\\x1b[A, loss \\x1b[1m1\\x1b[0m\\n"):
            console.show_line("0", shown, number=0)
    print("said", file=sys.stderr, flush=True)
    sys.stdin.read()
console.say("the last one")
print("ended", file=sys.stderr, flush=True)
"""


@contextmanager
def speaker(output: int, lines: int, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A launcher's console that writes lines above its own, until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", SPEAKER, str(lines)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    ) as process:
        yield process


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def let_end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def read_rest(master: int) -> bytes:
    """All that is there or comes, until the terminal is closed on the other side."""
    found = bytearray()
    while select.select([master], [], [], DEADLINE_S)[0]:
        try:
            piece = os.read(master, 65_536)
        except OSError:
            break
        if not piece:
            break
        found += piece
    return bytes(found)


def terminal(columns: int) -> tuple[int, int]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return master, slave


def on_terminal(columns: int, **environment: str) -> bytes:
    """What a terminal is sent by a speaker of three lines."""
    master, slave = terminal(columns)
    with speaker(slave, 3, environment) as process:
        os.close(slave)
        assert said_by(process) == "said\n"
        let_end(process)
        sent = read_rest(master)
        assert process.wait(DEADLINE_S) == 0
    os.close(master)
    return sent


@pytest.mark.parametrize("columns", [80, 40])
def test_the_line_stays_below_what_ranks_print_whatever_moves_their_cursor(columns: int) -> None:
    sent = on_terminal(columns)
    screen = Screen()
    screen.feed(sent[: sent.rindex(b"step 2") + len(b"step 2")])
    assert screen.lines() == [f"[0] rank {number}, loss 1" for number in range(3)] + ["step 2"]
    screen = Screen()
    screen.feed(sent)
    assert screen.lines() == [f"[0] rank {number}, loss 1" for number in range(3)] + ["the last one"]
    assert b"\x1b[1m1\x1b[0m" in sent, "colours of the ranks stay"


def test_no_color_leaves_the_line_and_takes_its_colour() -> None:
    assert b"\x1b[32mstep 2" in on_terminal(80)
    sent = on_terminal(80, NO_COLOR="1")
    assert b"step 2" in sent
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]m", sent)


def test_a_dumb_terminal_gets_the_ranks_lines_as_they_are() -> None:
    sent = on_terminal(80, TERM="dumb")
    assert b"step" not in sent
    assert b"\x1b[2J" in sent, "byte for byte"


def test_force_color_makes_no_terminal_of_a_pipe() -> None:
    reading, writing = os.pipe()
    with speaker(writing, 3, {"FORCE_COLOR": "1"}) as process:
        os.close(writing)
        let_end(process)
        sent = read_rest(reading)
        assert process.wait(DEADLINE_S) == 0
    os.close(reading)
    assert b"\x1b[36m[0]" in sent, "it asks for colour, and gets it"
    assert b"step" not in sent


def test_nobody_waits_for_a_terminal_that_was_stopped() -> None:
    """Ctrl-S, and later Ctrl-Q."""
    master, slave = terminal(80)
    termios.tcflow(slave, termios.TCOOFF)
    with speaker(slave, 500, {}) as process:
        assert said_by(process) == "said\n", "it has written all of it"
        assert not select.select([master], [], [], 0)[0]
        termios.tcflow(slave, termios.TCOON)
        os.close(slave)
        let_end(process)
        sent = read_rest(master)
        assert process.wait(DEADLINE_S) == 0
    os.close(master)
    screen = Screen()
    screen.feed(sent)
    assert screen.lines() == [f"[0] rank {number}, loss 1" for number in range(500)] + ["the last one"]


def test_nobody_dies_of_a_terminal_that_was_closed() -> None:
    master, slave = terminal(80)
    with speaker(slave, 3, {}) as process:
        os.close(slave)
        assert said_by(process) == "said\n"
        os.close(master)
        let_end(process)
        assert [said_by(process), said_by(process)] == ["the last one\n", "ended\n"]
        assert process.wait(DEADLINE_S) == 0
