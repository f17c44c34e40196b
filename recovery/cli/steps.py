"""`recovery steps`."""

from __future__ import annotations

from pathlib import Path

import typer

from recovery.cli.formats import Format, show_rows, warn
from recovery.cli.options import FOUND, AsJson, Connect, MaybePath, Rows, chosen
from recovery.cli.source import ask, source_of
from recovery.report import status as status_report
from recovery.report import stored as stored_state
from recovery.report import tables


def steps(
    path: MaybePath = None, connect: Connect = None, form: Rows = Format.TABLE, as_json: AsJson = False
) -> None:
    """What the workers have noted, or what a running scheduler has heard of them."""
    source, form = source_of(path, connect), chosen(form, as_json=as_json)
    if not isinstance(source, Path):
        show_rows(tables.STEPS, status_report.step_rows(ask(source, "/status")), form)
        return
    found, unreadable = stored_state.progress(stored_state.read_stored(source))
    show_rows(tables.STEPS, tables.STEPS.rows(found), form)
    for line in unreadable:
        warn(line)
    if unreadable:
        raise typer.Exit(FOUND)
