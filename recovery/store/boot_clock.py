"""When was the last write? By the machine's clock since its boot, which outlives a process and does not jump as the wall clock may.

A time of one boot means nothing after another: then nobody knows, and a window runs on from what was left of it.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from recovery import clock
from recovery.store.meta import meta_text, set_meta

_NAME = "last_write"


def note_write_time(connection: Connection, boot: str) -> None:
    """Note when it is, in the transaction of a write.

    Args:
        connection: of the owner.
        boot: id of this boot of the machine; empty: unknown, and nothing is noted.
    """
    set_meta(connection, _NAME, f"{boot} {clock.boot_ms()}" if boot else "")


def ms_since_last_write(connection: Connection, path: Path) -> int | None:
    """Milliseconds since the last write before this one; None: unknown."""
    found = meta_text(connection, _NAME, path)
    boot, _, at_ms = (found or "").partition(" ")
    if not boot or boot != clock.boot_id() or not at_ms.isascii() or not at_ms.isdigit():
        return None
    return max(0, clock.boot_ms() - int(at_ms))
