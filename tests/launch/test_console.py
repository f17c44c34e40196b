"""A launcher's console: supervision waits for no reader, and shows what a log holds however it is written."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.launch import console
from recovery.launch.incidents import last_lines
from recovery.launch.log_follow import Tail, follow

MANY = """
import sys
from recovery.launch import console
from recovery.launch.incidents import last_lines
for number in range(int(sys.argv[1])):
    console.say(f"line {number} " + "." * 90)
print("said", file=sys.stderr, flush=True)
sys.stdin.read()
console.say("the last one")
"""
DEADLINE_S = 120.0


def speaker(lines: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MANY, str(lines)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def test_nobody_waits_for_a_reader_that_takes_nothing() -> None:
    with speaker(50_000) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "said\n"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def test_a_slow_reader_gets_every_line_that_waited() -> None:
    with speaker(5_000) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "said\n"
        output, _ = process.communicate(timeout=DEADLINE_S)
        lines = output.splitlines()
        assert [line.split()[1] for line in lines[:-1]] == [str(number) for number in range(5_000)]
        assert lines[-1] == "the last one"


def test_lines_beyond_what_waits_are_counted() -> None:
    with speaker(50_000) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "said\n"
        output, _ = process.communicate(timeout=DEADLINE_S)
        [said] = [line for line in output.splitlines() if "are not shown" in line]
        shown = len(output.splitlines()) - 1
        assert shown + int(said.split()[0]) == 50_001


def test_a_log_that_was_truncated_in_place_is_shown_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "worker_0.log"
    log.write_text("one\ntwo\n")
    tail = Tail(log, "0", number=0)
    with log.open("a") as writing:
        writing.write("three\n")
        writing.flush()
        tail.show()
        # As logrotate's copytruncate does it.
        os.truncate(log, 0)
        writing.write("four\n")
        writing.flush()
        tail.show()
    output = capsys.readouterr().out.splitlines()
    assert output == ["[0] three", f"{log} was truncated; it is shown from its beginning", "[0] four"]


def test_a_line_without_an_end_is_shown_in_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "worker_0.log"
    tail = Tail(log, "0", number=0)
    log.write_text("x" * 200_000)
    for _ in range(5):
        tail.show()
    assert capsys.readouterr().out.count("x") == 3 * 65_536, "the rest may still go on"
    tail.show(to_the_end=True)
    assert capsys.readouterr().out.count("x") == 200_000 - 3 * 65_536


def test_a_loud_log_is_shown_piece_by_piece_and_others_are_served_in_between(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, line, lines = tmp_path / "worker_0.log", f"line {'x' * 100}\n", 2_000
    tail = Tail(log, "0", number=0)
    log.write_text(line * lines)
    shown: list[int] = []

    async def supervise() -> None:
        following = asyncio.create_task(follow([tail]))
        while sum(shown) < lines:
            await asyncio.sleep(0)
            if count := capsys.readouterr().out.count("line "):
                shown.append(count)
        following.cancel()

    asyncio.run(supervise())
    assert max(shown) * len(line) <= 65_536, "a death waits for one piece, not for all"
    assert len(shown) > 2


REPEATED = """
import sys
from recovery.launch import console
from recovery.launch.incidents import last_lines
print("begun", file=sys.stderr, flush=True)
sys.stdin.read()
for number in range(200):
    console.show_line("0", "x", number=0)
print(len(console.console._buffer), file=sys.stderr)
"""


def test_what_a_closed_terminal_did_not_take_is_not_kept() -> None:
    master, slave = pty.openpty()
    pipe, command = subprocess.PIPE, [sys.executable, "-c", REPEATED]
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=slave, stderr=pipe) as process:
        os.close(slave)
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        os.close(master)
        assert process.stdin is not None
        process.stdin.close()
        assert process.stderr.readline() == "0\n"


def test_a_bar_that_rank_0_draws_is_there_to_be_shown_until_its_line_ends(tmp_path: Path) -> None:
    log, other = tmp_path / "worker_0.log", tmp_path / "worker_1.log"
    tails = [Tail(log, "0", number=0), Tail(other, "1", number=1)]
    shown = []
    other.write_text("rank 1:  70%")
    for written in ("epoch 1\n", "\r 10%|#   |", "\r 20%|##  |\x1b[A\r", "\n", "Name: "):
        with log.open("a") as writing:
            writing.write(written)
        for tail in tails:
            tail.show()
        shown.append(console.bar_of_rank_0())
    assert shown == ["", " 10%|#   |", " 20%|##  |", "", ""], "a half line is no bar"


def test_nobody_waits_for_the_other_end_of_a_pipe_that_has_the_name_of_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher hung before its first process, and no signal ended it."""
    log = tmp_path / "worker_0.log"
    os.mkfifo(log)
    with pytest.raises(OSError, match="No such device or address"):
        console.open_log(log, start=1)
    assert last_lines(log) == ()
    tail = Tail(log, "0", number=0)
    for _ in range(2):
        tail.show()
    assert capsys.readouterr().out == f"{log} is not shown: it cannot be read (Illegal seek)\n"


def test_who_reads_such_a_pipe_gets_what_a_process_prints(tmp_path: Path) -> None:
    log = tmp_path / "worker_0.log"
    os.mkfifo(log)
    reading = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    with console.open_log(log, start=1) as writing:
        assert os.get_blocking(writing.fileno())
        writing.write(b"step 1\n")
        lines = os.read(reading, 4096).splitlines()
    os.close(reading)
    assert lines[-1] == b"step 1"


def test_of_the_schedulers_log_the_refused_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host with another token waits, and the launcher of the scheduler's host waits for it."""
    log = tmp_path / "scheduler.log"
    tail = Tail(log, "scheduler", number=0, only="event=peer_refused")
    log.write_text("event=listening\nWARNING event=peer_refused peer=10.0.0.2 count=1\n")
    tail.show()
    assert capsys.readouterr().out == "[scheduler] WARNING event=peer_refused peer=10.0.0.2 count=1\n"
