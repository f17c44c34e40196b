"""The event lines: one per event, key=value, in the words of the events table. Nothing is ever printed over two lines.

    2026-11-20T10:02:44.118Z INFO event=node_lost node=worker_3 rank=3 incarnation=1 generation=1 step=412 reason="..."

What a peer, a path or a traceback put into a field cannot forge a line: control characters are escaped, length is capped.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import datetime, timezone

from typing_extensions import override

from recovery import standard_streams
from recovery.core.records import EventRecord
from recovery.errors.base import printable

LOGGER_NAME = "recovery"

LINE_CHARACTERS_MAX = 4_096
"""Longest line. Up to 4,096 bytes in one write to a pipe stay together when other processes write to it too (PIPE_BUF)."""
_VALUE_CHARACTERS_MAX = 1_024
"""Longest value, so that a traceback cannot push the fields behind it off the line."""

_FIELDS = ("node_id", "rank", "incarnation", "run", "generation", "step", "reason", "because", "details")
_SHORT_NAMES = {"node_id": "node"}
_EVENT_LINE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z INFO event=")


def format_event(record: EventRecord, wall_ms: int) -> str:
    """Write an event as one line.

    Args:
        record: the event; fields that are unset or empty are left out.
        wall_ms: when it happened, milliseconds since 1970-01-01 UTC.

    Returns:
        The line, without its end, at most `LINE_CHARACTERS_MAX` characters.
    """
    parts = [_instant(wall_ms), "INFO", f"event={record.kind.value}"]
    for field in _FIELDS:
        value = getattr(record, field)
        if value is not None and value != "":
            parts.append(f"{_SHORT_NAMES.get(field, field)}={quoted(str(value))}")
    return _capped(" ".join(parts), LINE_CHARACTERS_MAX)


def quoted(text: str) -> str:
    """Write a value so that it stays one value on one line: quoted when it holds more than a word, controls escaped."""
    capped = _capped(text, _VALUE_CHARACTERS_MAX)
    escaped = escape(capped)
    if escaped == capped and capped and not any(character in ' "=\\' for character in capped):
        return capped
    return '"' + escaped.replace('"', '\\"') + '"'


def escape(text: str) -> str:
    r"""Replace what does not print (line ends, terminal controls, direction marks) by \n, \x1b, \u202e; and \ by \\."""
    return printable(text.replace("\\", "\\\\"))


def setup(role: str, level: int = logging.INFO) -> logging.Logger:
    """Send the logger "recovery" to stderr, one line per record. A second call changes only role and level.

    Args:
        role: what this process is; it stands in each line.
        level: the lowest level that is printed.

    Returns:
        The logger. Records do not reach the root logger: a training script's own set-up stays its own.
    """
    standard_streams.hold()
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(level)
    logger.propagate = False
    for handler in logger.handlers:
        if isinstance(handler, _StderrHandler):
            handler.setFormatter(_LineFormatter(role))
            return logger
    handler = _StderrHandler()
    handler.setFormatter(_LineFormatter(role))
    logger.addHandler(handler)
    return logger


class _StderrHandler(logging.Handler):
    """Writes to whatever sys.stderr is at that moment, so that a captured or reopened stderr is followed."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None:
            return
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except (OSError, ValueError):
            # The terminal is gone or stderr is closed: training does not end because nobody listens.
            return


class _LineFormatter(logging.Formatter):
    """Time, level, role, then the message; a line that `format_event` made is printed as it is."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    @override
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if _EVENT_LINE.match(message) and message.isprintable():
            return _capped(message, LINE_CHARACTERS_MAX)
        line = f"{_instant(int(record.created * 1_000))} {record.levelname} role={quoted(self._role)} {escape(message)}"
        if record.exc_info:
            line += f" details={quoted(self.formatException(record.exc_info))}"
        return _capped(line, LINE_CHARACTERS_MAX)


def _instant(wall_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    seconds, milliseconds = divmod(wall_ms, 1_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def _capped(text: str, limit: int) -> str:
    """Cut a text to its limit and say so."""
    if len(text) <= limit:
        return text
    note = f"... ({len(text)} characters)"
    return text[: limit - len(note)] + note


def flush_streams() -> None:
    """Let out what was printed, before this process ends or becomes another program. What a full disk does not take is lost.

    The interpreter would try it once more at its end, and end with its own exit code (120) instead of ours.
    """
    for stream in (sys.stdout, sys.stderr):
        # A process that was started without one has None.
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            standard_streams.send_nowhere(stream)
