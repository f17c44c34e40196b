"""Event lines stay one line, whatever is put into them; the logger is set up once."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import clock, log
from recovery.core.ids import Generation, Incarnation, NodeId, Rank
from recovery.core.records import EventKind, EventRecord

WALL_MS = 1_795_169_564_118


@pytest.fixture(autouse=True)
def logger_as_before() -> Iterator[None]:
    """Take the handlers of a test off again."""
    logger = logging.getLogger(log.LOGGER_NAME)
    before = (list(logger.handlers), logger.level, logger.propagate)
    logger.handlers.clear()
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_an_event_is_one_line_of_keys_and_values() -> None:
    record = EventRecord(
        kind=EventKind.NODE_LOST,
        node_id=NodeId("worker_3"),
        rank=Rank(3),
        incarnation=Incarnation(1),
        generation=Generation(1),
        step=412,
        reason="connection closed",
    )

    assert log.format_event(record, WALL_MS) == (
        "2026-11-20T10:12:44.118Z INFO event=node_lost node=worker_3 rank=3 incarnation=1 generation=1 step=412 "
        'reason="connection closed"'
    )


def test_what_a_peer_sends_cannot_forge_a_line_or_a_field() -> None:
    line = log.format_event(
        EventRecord(kind=EventKind.NODE_FAILED, reason='x" rank=0\nINFO event=job_finished \x1b[2J\u202e\\'),
        WALL_MS,
    )

    assert line.endswith(r'reason="x\" rank=0\nINFO event=job_finished \x1b[2J\u202e\\"')


@given(st.text(), st.text(), st.integers(0, 2**41))
def test_any_text_stays_on_one_printable_line(reason: str, details: str, wall_ms: int) -> None:
    line = log.format_event(EventRecord(kind=EventKind.NODE_FAILED, reason=reason, details=details), wall_ms)

    assert line.isprintable()
    assert len(line) <= log.LINE_CHARACTERS_MAX


def test_a_long_line_is_cut_with_a_mark() -> None:
    record = EventRecord(
        kind=EventKind.NODE_FAILED, reason="\n" * 5_000, because="b" * 5_000, details="d" * 5_000
    )
    line = log.format_event(record, WALL_MS)

    assert len(line) == log.LINE_CHARACTERS_MAX
    assert line.endswith("characters)")


def test_set_up_twice_prints_once(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("scheduler")
    log.setup("worker_1").warning("disk %s", "full\nnow")

    printed = capsys.readouterr().err
    assert printed.endswith(r"Z WARNING role=worker_1 disk full\nnow" + "\n")
    assert printed.count("\n") == 1


def test_an_event_line_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = log.format_event(EventRecord(kind=EventKind.PLAN_MADE, reason="a\\b\n"), WALL_MS)
    log.setup("scheduler").info("%s", line)

    assert capsys.readouterr().err == line + "\n"


def test_an_exception_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("odd\nvalue")
    except ValueError:
        log.setup("worker_1").exception("it failed")

    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert r"ValueError: odd\nvalue" in printed


def test_records_below_the_level_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("worker_1").debug("frame")
    log.setup("worker_1", logging.DEBUG).debug("frame two")

    assert capsys.readouterr().err.count("frame") == 1


def test_a_closed_stderr_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)

    log.setup("worker_1").warning("nobody listens")


def test_a_full_disk_takes_no_exit_code_from_a_process_that_ends() -> None:
    program = "import sys\nfrom recovery import log\nprint('lost')\nlog.flush_streams()\nsys.exit(36)"
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program], env=environment, stdout=full, timeout=300, check=False
        )

    assert ended.returncode == 36


def test_the_clocks_count_milliseconds() -> None:
    first, second = clock.monotonic_ms(), clock.monotonic_ms()

    assert first <= second
    assert clock.wall_ms() > WALL_MS - 10 * 365 * 86_400_000


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_nothing_is_printed_into_the_files_of_a_process_that_has_no_standard_streams(
    tmp_path: Path, closed: str
) -> None:
    program = (
        "import logging, os, sys; from recovery import log; log.setup('worker');"
        "file = open('file', 'wb'); logging.getLogger('recovery').warning('heard by nobody');"
        "os.write(1, b'a library'); os.write(2, b'a library'); print('x', file=sys.stderr); sys.exit(file.fileno() < 3)"
    )
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_bytes() == b""


def test_command_whose_output_goes_nowhere_says_by_its_exit_code_how_it_went(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recovery", "status", str(tmp_path / "none")]
    done = subprocess.run(["/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *command], check=False)

    assert done.returncode == 24
