"""`recovery doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from recovery.cli.formats import console, print_json, text_of
from recovery.cli.options import FOUND, AsJson
from recovery.report.doctor import examine

_Directories = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[CHECKPOINTS]...", help="Directories that the script will save to."),
]


def doctor(checkpoints: _Directories = None, as_json: AsJson = False) -> None:
    """Look at this machine; one line per check."""
    checks = list(examine(os.environ, checkpoints or ()))  # noqa: TID251 - read by recovery.config
    if as_json:
        print_json(checks)
    else:
        for check in checks:
            mark = Text("ok   ", style="green") if check.ok else Text("look ", style="bold red")
            step = f"\n     {check.next_step}" if check.next_step else ""
            console.print(
                Text.assemble(mark, (f"{check.name}: ", "bold"), text_of(check.found), step), soft_wrap=True
            )
    if not all(check.ok for check in checks):
        raise typer.Exit(FOUND)
