"""`recovery events`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typing_extensions import assert_never

from recovery import clock
from recovery.cli.formats import Format, console, print_line, show_rows, text_of
from recovery.cli.options import AsJson, Connect, MaybePath, Rows, chosen
from recovery.cli.source import ask, event_of, source_of
from recovery.errors import RecoveryPathError, SettingError, UsageError
from recovery.report import stored as stored_state
from recovery.report import tables
from recovery.store.reader import StoredEvent, read_events

_pause = threading.Event()
"""Nobody sets it: Ctrl+C ends the wait."""
_FOLLOW_S = 0.3
_PAGE = 1000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def events(  # noqa: PLR0913, PLR0917 - one parameter an option
    path: MaybePath = None,
    connect: Connect = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on with what comes, until Ctrl+C")
    ] = False,
    since: Annotated[str | None, typer.Option(help="only from then on: 10m, 2h, or a time, ISO 8601")] = None,
    node: Annotated[str | None, typer.Option(help="only about this node id")] = None,
    limit: Annotated[int, typer.Option(help="at most so many, the newest", min=1)] = 100,
    form: Rows = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """The newest events, and with `follow` all that come after, until Ctrl+C; of a running scheduler the last since its start."""
    source, form = source_of(path, connect), chosen(form, as_json=as_json)
    if isinstance(source, Path):
        _events_of_files(source, form, since=since, node=node, limit=limit, follow=follow)
        return
    if follow or since or node:
        raise UsageError(
            field="--follow, --since and --node",
            reason="need the stored event log",
            next_step="Name the job's MS_RECOVERY_PATH instead of --connect.",
        )
    rows = tables.EVENTS.rows(event_of(row) for row in ask(source, "/events")[-limit:])
    show_rows(tables.EVENTS, [{**row, "sequence": None} for row in rows], form)


def _events_of_files(
    path: Path, form: Format, *, since: str | None, node: str | None, limit: int, follow: bool
) -> None:
    since_ms = _since_ms(since) if since else 0
    try:
        found = read_events(path, limit=limit, newest=True, node_id=node, since_ms=since_ms)
    except RecoveryPathError:
        stored_state.check_is_here(path)
        raise
    if not follow:
        show_rows(tables.EVENTS, tables.EVENTS.rows(found), form)
        return
    try:
        _follow(path, form, found, node=node, since_ms=since_ms)
    except KeyboardInterrupt:
        return


def _follow(
    path: Path, form: Format, found: Sequence[StoredEvent], *, node: str | None, since_ms: int
) -> NoReturn:
    after = found[-1].sequence if found else 0
    _show_stream(tables.EVENTS.rows(found), form, first=True)
    while True:
        _pause.wait(_FOLLOW_S)
        found = read_events(path, after=after, limit=_PAGE, node_id=node, since_ms=since_ms)
        _show_stream(tables.EVENTS.rows(found), form, first=False)
        after = found[-1].sequence if found else after


def _show_stream(rows: Sequence[dict[str, Any]], form: Format, *, first: bool) -> None:
    """A stream has no end: JSON is one document a line, and a table has no width to find out."""
    match form:
        case Format.TABLE:
            for row in rows:
                print_line(_line_of(row))
        case Format.CSV:
            show_rows(tables.EVENTS, rows, Format.CSV, with_head=first)
        case Format.JSON | Format.NDJSON:
            show_rows(tables.EVENTS, rows, Format.NDJSON)
        case _:
            assert_never(form)
    console.file.flush()


def _line_of(row: dict[str, Any]) -> str:
    step = f"step={row['step']}" if row["step"] else ""
    cells = (row["time"], row["kind"], row["node"] or "", step, row["reason"])
    return "  ".join(text_of(cell).plain for cell in cells if cell)


def _since_ms(text: str) -> int:
    """`10m`, `2h`: so long ago; else an ISO 8601 time, UTC where it names no zone."""
    unit = _UNITS_S.get(text[-1:])
    try:
        if unit is not None:
            moment = clock.utc_now() - timedelta(seconds=float(text[:-1]) * unit)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise SettingError(
            "SETTING_TYPE",
            field="--since",
            value=text,
            rule="must be a time such as 2026-11-21T10:00:00, or how long ago",
            next_step="Give, for example, --since=10m.",
        ) from None
    return int(moment.timestamp() * 1000)
