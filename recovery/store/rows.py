"""Record <-> row, and the digest that every row carries.

SQLite has no checksum of its own: of single-bit flips in a file that had an effect, 22 % gave wrong rows silently
although `integrity_check` passed. So each row holds a BLAKE2b digest over its table's name and its fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import Insert, Select, Table, select
from sqlalchemy.dialects.sqlite import insert

from recovery.core import records
from recovery.core.converter import Converter
from recovery.core.copy_records import CopyRecord
from recovery.errors import StoreError
from recovery.store import models

RecordType = TypeVar("RecordType", bound=msgspec.Struct)

_DIGEST_BYTES = 16
"""128 bits: a flipped bit escapes once in 3e38. It guards against accidents, not against an attacker."""

_COLUMNS = {"digest": "digest_of_file", "slot": "seat"}
"""Each row has a `digest` of its own; a slot was called a seat when its table was made."""

_ADDED = frozenset({"cause", "about", "replica"})
"""Last fields that a table was given when it had rows. Where they are empty a row's digest is that of before."""


class Shape(NamedTuple):
    """How the records of one class lie in their table."""

    table: Table
    fields: tuple[str, ...]
    """The record's fields in order."""
    columns: tuple[str, ...]
    """The column of each field; the same word but for those of `_COLUMNS`."""
    key: tuple[str, ...]
    """Columns that name one row in an error."""
    write: Insert
    """Upsert by the key; a plain insert for events."""
    read: Select[Any]
    """All rows in the order of their key."""
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    """Takes the fields' values out of a row. Every table ends with the time of the write and the digest."""


def _shape(record: type[msgspec.Struct], table: Table) -> Shape:
    fields = record.__struct_fields__
    columns = tuple(_COLUMNS.get(field, field) for field in fields)
    key = tuple(column.name for column in table.primary_key)
    write = insert(table)
    if table is not models.EVENTS:
        rest = {name: write.excluded[name] for name in (*columns, "wall_ms", "digest") if name not in key}
        write = write.on_conflict_do_update(index_elements=key, set_=rest)
    order = table.columns.keys()
    read = select(table).order_by(*table.primary_key)
    return Shape(
        table, fields, columns, key, write, read, itemgetter(*(order.index(name) for name in columns))
    )


SHAPES: Mapping[type[msgspec.Struct], Shape] = {
    record: _shape(record, table)
    for record, table in (
        (records.JobRecord, models.JOB),
        (records.RunRecord, models.RUNS),
        (records.NodeRecord, models.NODES),
        (records.SlotRecord, models.SLOTS),
        (records.ProcessRecord, models.PROCESSES),
        (records.IncarnationRecord, models.INCARNATIONS),
        (records.GenerationRecord, models.GENERATIONS),
        (records.LiveSourceRecord, models.LIVE_SOURCES),
        (records.TrainingEndRecord, models.TRAINING_ENDS),
        (records.CheckpointRecord, models.CHECKPOINTS),
        (CopyRecord, models.COPIES),
        (records.StepRecord, models.STEP_PROGRESS),
        (records.ActivityRecord, models.ACTIVITY),
        (records.EventRecord, models.EVENTS),
        (records.DirectoryRecord, models.DIRECTORIES),
    )
}
"""Every record class and its table."""

_CONVERTERS: dict[type[msgspec.Struct], Converter[Any]] = {record: Converter(record) for record in SHAPES}


def row_of(record: msgspec.Struct, wall_ms: int) -> dict[str, Any]:
    """Turn a record into the row to write.

    Args:
        record: a record of `SHAPES`.
        wall_ms: time of the write, milliseconds since 1970 UTC.
    """
    shape = SHAPES[type(record)]
    fields: dict[str, Any] = msgspec.to_builtins(record)
    row = {column: fields[field] for field, column in zip(shape.fields, shape.columns, strict=True)}
    return {**row, "wall_ms": wall_ms, "digest": _digest(shape, row.values(), wall_ms)}


def record_of(record: type[RecordType], row: Sequence[Any], path: Path) -> RecordType:
    """Turn a row back into its record, after checking its digest. By position: an event log has 100,000 rows.

    Args:
        record: class of the record.
        row: all columns of the table, in its order.
        path: the file, for the error.

    Raises:
        StoreError: the digest differs, or a value is not of its type; names table and key.
    """
    shape = SHAPES[record]
    values, wall_ms, digest = shape.pick(row), row[-2], row[-1]
    try:
        if _digest(shape, values, wall_ms) != digest:
            raise _damaged(shape, row, path, "does not match its digest")
        found: RecordType = _CONVERTERS[record](dict(zip(shape.fields, values, strict=True)))
        return found
    except (msgspec.ValidationError, TypeError, UnicodeError) as error:
        raise _damaged(shape, row, path, f"holds what no release wrote: {error}") from error


def _digest(shape: Shape, values: Any, wall_ms: int) -> str:
    """Msgpack is canonical for flat lists of text, whole numbers and None, which is all that a row holds."""
    values = [*values]
    while shape.fields[len(values) - 1] in _ADDED and not values[-1]:
        values.pop()
    coded = msgspec.msgpack.encode([str(shape.table.name), wall_ms, *values])
    return hashlib.blake2b(coded, digest_size=_DIGEST_BYTES).hexdigest()


def _damaged(shape: Shape, row: Sequence[Any], path: Path, what: str) -> StoreError:
    order = shape.table.columns.keys()
    key = ", ".join(f"{name}={row[order.index(name)]!r}" for name in shape.key)
    return StoreError(
        "STORE_CORRUPT", path=str(path), reason=f"the row {key} of table {shape.table.name} {what}"
    )
