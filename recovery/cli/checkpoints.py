"""`recovery checkpoints`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recovery.cli.formats import Format, show_rows
from recovery.cli.options import AsJson, Connect, MaybePath, Rows, chosen
from recovery.cli.source import ask, source_of
from recovery.core.converter import Converter
from recovery.core.copy_index import CopiedCheckpoint
from recovery.errors import UsageError
from recovery.report import stored as stored_state
from recovery.report import tables
from recovery.store.reader import read_checkpoints

_records = Converter(list[CopiedCheckpoint])


def checkpoints(
    path: MaybePath = None,
    connect: Connect = None,
    form: Rows = Format.TABLE,
    as_json: AsJson = False,
    retired_too: Annotated[
        bool, typer.Option("--all", help="those that the checkpoint index has retired too")
    ] = False,
) -> None:
    """The checkpoints of the index, from the files or from a running scheduler."""
    source = source_of(path, connect)
    if isinstance(source, Path):
        stored = stored_state.read_stored(source)
        found = read_checkpoints(source) if retired_too else stored.checkpoints
        rows = tables.checkpoint_rows(found, stored.copies)
    elif retired_too:
        raise UsageError(
            field="--all",
            reason="needs the recovery path: a scheduler knows its checkpoint index only",
            next_step="Name PATH instead of --connect.",
        )
    else:
        rows = tables.CHECKPOINTS.rows(_records(ask(source, "/checkpoints")))
    show_rows(tables.CHECKPOINTS, rows, chosen(form, as_json=as_json))
