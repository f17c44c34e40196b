"""What a file says of itself, by name. These rows carry no digest, so a value is checked where it is read."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from recovery import clock
from recovery.errors import StoreError
from recovery.store.models import META

_LAST_WRITE = "last_write"
"""When it was, by the machine's clock since its boot, which outlives a process and does not jump as the wall clock may. A time of one
boot means nothing after another: then nobody knows, and a window runs on from what was left of it."""


def meta_text(connection: Connection, name: str, path: Path) -> str | None:
    """Read one value, in the transaction of `connection`.

    Returns:
        None: the file does not say.

    Raises:
        StoreError: the value is no text; one flipped bit makes bytes or a number of it.
    """
    found: object = connection.execute(select(META.c.value).where(META.c.name == name)).scalar_one_or_none()
    if found is None or isinstance(found, str):
        return found
    raise StoreError("STORE_CORRUPT", path=str(path), reason=f"the row {name!r} of table meta is no text")


def set_meta(connection: Connection, name: str, value: str) -> None:
    """Write one value in the place of the one before, in the transaction of `connection`."""
    row = insert(META).values(name=name, value=value)
    connection.execute(row.on_conflict_do_update(index_elements=[META.c.name], set_={"value": value}))


def note_write_time(connection: Connection, boot: str) -> None:
    """Note when it is, in the transaction of a write. `boot` is the id of this boot of the machine; empty: unknown, and nothing is noted."""
    set_meta(connection, _LAST_WRITE, f"{boot} {clock.boot_ms()}" if boot else "")


def ms_since_last_write(connection: Connection, path: Path) -> int | None:
    """Milliseconds since the last write before this one; None: unknown."""
    found = meta_text(connection, _LAST_WRITE, path)
    boot, _, at_ms = (found or "").partition(" ")
    if not boot or boot != clock.boot_id() or not at_ms.isascii() or not at_ms.isdigit():
        return None
    return max(0, clock.boot_ms() - int(at_ms))
