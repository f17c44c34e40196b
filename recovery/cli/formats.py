"""How a command's answer is written: a table for people, or JSON, NDJSON and CSV for programs. Errors go to stderr."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import assert_never

from recovery.errors.base import printable
from recovery.report.as_json import in_one_line
from recovery.report.tables import View

_PIPE_WIDTH = 20_000
"""Where there is no terminal, every row is one line: wider than any is."""
console = Console(
    highlight=False, emoji=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH
)
"""Colour on a terminal only, and none where NO_COLOR is set."""


def is_a_terminal() -> bool:
    """Is standard output a terminal? Rich takes a pipe for one where FORCE_COLOR is set, and a screen can be kept up to date on a terminal only."""
    return console.file.isatty() and not console.is_dumb_terminal


_FOLDED = 300
"""Rows of a table whose long columns are folded to the width of the terminal: a millisecond each."""
_LONG = ("reason", "because", "ended", "path", "rule", "value", "copies")
"""Columns that may be folded; the others keep their width."""
_STYLES = {
    "live": "green",
    "running": "green",
    "finished": "green",
    "committed": "green",
    "warming up": "yellow",
    "suspect": "yellow",
    "unheard": "yellow",
    "not running": "red",
    "interrupted": "yellow",
    "forming": "yellow",
    "lost": "red",
    "failed": "red",
    "invalid": "red",
}
"""States that one looks for first."""


class Format(str, Enum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    NDJSON = "ndjson"
    CSV = "csv"


def show_rows(view: View, rows: Sequence[Mapping[str, Any]], form: Format, *, with_head: bool = True) -> None:
    """Write rows.

    Args:
        view: whose they are.
        rows: plain values by key.
        form: how.
        with_head: CSV begins with its keys; not where it goes on.
    """
    match form:
        case Format.JSON:
            print_json(list(rows))
        case Format.NDJSON:
            for row in rows:
                print_line(json.dumps(row, ensure_ascii=False))
        case Format.CSV:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            if with_head:
                writer.writerow([column.key for column in view.columns])
            writer.writerows([_cell(row[column.key]) for column in view.columns] for row in rows)
        case Format.TABLE:
            if console.is_terminal and len(rows) <= _FOLDED:
                console.print(table_of(view, rows))
            else:
                _print_lines(view, rows)
        case _:
            assert_never(form)


def table_of(view: View, rows: Iterable[Mapping[str, Any]]) -> Table:
    """The rows as a table for people: the columns that they look for."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [column for column in view.columns if column.shown]
    for column in shown:
        table.add_column(column.key, no_wrap=column.key not in _LONG, overflow="fold")
    for row in rows:
        table.add_row(*(text_of(row[column.key]) for column in shown))
    return table


def _print_lines(view: View, rows: Iterable[Mapping[str, Any]]) -> None:
    """The same as lines: for a pipe, and for so many rows that folding each would take seconds."""
    shown = [column.key for column in view.columns if column.shown]
    cells = [shown, *([safe(row[key]) for key in shown] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print_line("  ".join(map(str.ljust, line, widths)).rstrip())


def safe(value: Any) -> str:
    """A value for people: nothing for none, and nothing that could steer a terminal."""
    cell = _cell(value)
    text = "" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell)
    return printable(text)


def _cell(value: Any) -> Any:
    """A value that fits one place of a row: several words with spaces between them."""
    return " ".join(value) if isinstance(value, (list, tuple)) else value


def text_of(value: Any) -> Text:
    """The same with states in their colour."""
    text = safe(value)
    return Text(text, style=_STYLES.get(text, ""))


def print_json(value: Any) -> None:
    """One indented document."""
    print_line(json_of(value).decode())


def json_of(value: Any) -> bytes:
    """An indented document."""
    return msgspec.json.format(in_one_line(value), indent=2)


def print_line(text: str) -> None:
    """One line of output."""
    sys.stdout.write(text + "\n")


def warn(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(text + "\n")
