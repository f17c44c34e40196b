"""The arguments and options that several commands take, and the question that some ask first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recovery.cli.formats import Format
from recovery.errors import UsageError

RecoveryPath = Annotated[
    Path, typer.Argument(help="the job's MS_RECOVERY_PATH", metavar="PATH", readable=False)
]
MaybePath = Annotated[
    Path | None,
    typer.Argument(
        help="the job's MS_RECOVERY_PATH; without it that of the environment, else ./recovery",
        metavar="[PATH]",
        readable=False,
    ),
]
Connect = Annotated[
    str | None, typer.Option(help="HOST:PORT of a running scheduler, instead of PATH", metavar="HOST:PORT")
]
Rows = Annotated[Format, typer.Option("--format", help="table, json, ndjson or csv")]
AsJson = Annotated[bool, typer.Option("--json", help="for programs: one JSON document")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]

FOUND = 1
"""Exit code of a check that found something."""


def chosen(form: Format, *, as_json: bool) -> Format:
    """`--json` is short for `--format=json`."""
    return Format.JSON if as_json else form


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `--yes` has answered; another answer ends the command.

    Raises:
        UsageError: nobody is there to answer.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            field="--yes",
            reason=f"is missing, and without a terminal nobody is asked: {question}",
            next_step="Give --yes to say so.",
        )
    typer.confirm(question, abort=True)
