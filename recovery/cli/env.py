"""`recovery env`."""

from __future__ import annotations

import os

from recovery import config
from recovery.cli.formats import Format, show_rows, warn
from recovery.cli.options import AsJson, Rows, chosen
from recovery.config.reader import Reader
from recovery.report.tables import Column, View

_VARIABLES = View(
    "env",
    "Every variable that is read, its value and where it comes from.",
    (
        Column("name", "variable", lambda source: source.name),
        Column("value", "as typed; empty: unset without a default", lambda source: source.value),
        Column("source", "environment, mpirun, rank table or default", lambda source: source.source),
        Column(
            "fate", "honoured, passed through, or accepted without effect", lambda source: source.fate.value
        ),
        Column("rule", "what its value must be", lambda source: source.rule),
    ),
)


def env(form: Rows = Format.TABLE, as_json: AsJson = False) -> None:
    """Every variable with its value, source and rule; then what is wrong with them.

    Raises:
        SettingError: one is wrong.
    """
    environ = os.environ  # noqa: TID251 - read by recovery.config
    show_rows(_VARIABLES, _VARIABLES.rows(Reader(environ).sources()), chosen(form, as_json=as_json))
    for warning in config.load(environ).warnings:
        warn(warning)
