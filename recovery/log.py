"""The event lines: one line per event, key=value, the same words as in the events table."""

from __future__ import annotations

import logging
import sys
from datetime import datetime, timezone

from recovery.core.records import EventRecord

_LINE_CHARACTERS_MAX = 2_000
"""Longer lines are cut: a traceback has its own column in the store."""


def format_event(record: EventRecord, wall_ms: int) -> str:
    """One line for an event: its kind, what it is about, and why. Empty fields are left out.

    Args:
        record: the event.
        wall_ms: when it happened, milliseconds since 1970 UTC.
    """
    at = datetime.fromtimestamp(wall_ms / 1000, timezone.utc).strftime("%H:%M:%S")
    parts = [f"event={record.kind.value}"]
    for key, value in (
        ("node", record.node_id),
        ("rank", record.rank),
        ("incarnation", record.incarnation),
        ("generation", record.generation),
        ("step", record.step),
    ):
        if value is not None:
            parts.append(f"{key}={value}")
    for key, text in (("reason", record.reason), ("because", record.because), ("details", record.details)):
        if text:
            parts.append(f'{key}="{escape(text)}"')
    parts.append(f"at={at}")
    return " ".join(parts)[:_LINE_CHARACTERS_MAX]


def escape(text: str) -> str:
    """Keep one event on one line, whatever a peer put into its text."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    ).replace('"', "'")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc)
        text = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z {record.levelname} {escape(record.getMessage())}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def setup(role: str) -> None:
    """Send the engine's lines to stderr, once per process. The root logger and the user's handlers stay as they are.

    Args:
        role: of this process, named in the logger's debug lines.
    """
    logger = logging.getLogger("recovery")
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.debug("role=%s", role)
