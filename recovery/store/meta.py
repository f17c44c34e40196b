"""What a file says of itself, by name. These rows carry no digest, so a value is checked where it is read."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from recovery.errors import StoreError
from recovery.store.models import META


def meta_text(connection: Connection, name: str, path: Path) -> str | None:
    """Read one value, in the transaction of `connection`.

    Args:
        connection: to the file.
        name: of the value.
        path: of the file, for the error.

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
