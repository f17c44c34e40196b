"""`recovery generations`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recovery.cli.formats import Format, show_rows
from recovery.cli.options import AsJson, Connect, MaybePath, Rows, chosen
from recovery.cli.source import ask, source_of
from recovery.core.converter import Converter
from recovery.core.records import GenerationRecord
from recovery.report import stored as stored_state
from recovery.report import tables

_records = Converter(list[GenerationRecord])


def generations(
    path: MaybePath = None, connect: Connect = None, form: Rows = Format.TABLE, as_json: AsJson = False
) -> None:
    """All generations, from the files or from a running scheduler."""
    source = source_of(path, connect)
    if isinstance(source, Path):
        found: Sequence[GenerationRecord] = stored_state.read_stored(source).generations
    else:
        found = _records(ask(source, "/generations"))
    show_rows(tables.GENERATIONS, tables.GENERATIONS.rows(found), chosen(form, as_json=as_json))
