"""`recovery plan`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from recovery.cli.formats import console, print_json
from recovery.cli.options import FOUND, AsJson, MaybePath
from recovery.cli.source import path_of
from recovery.report import stored as stored_state
from recovery.report.plan import Plan
from recovery.report.plan import plan as make_plan
from recovery.report.plan_text import lines_of
from recovery.report.rank_progress import stored_newest_step
from recovery.report.stored import Stored


def plan(
    path: MaybePath = None,
    as_json: AsJson = False,
    allow_restart_from_zero: Annotated[
        bool, typer.Option("--allow-restart-from-zero", help="as with MS_ALLOW_RESTART_FROM_ZERO=1")
    ] = False,
) -> None:
    """What a restart now would do; the exit code says whether the job could go on."""
    path = path_of(path)
    state = stored_state.read_stored(path)
    found = make_plan(state, allow_restart_from_zero=allow_restart_from_zero)
    if as_json:
        print_json(found)
    else:
        _show(state, found)
    if found.action == "fail":
        raise typer.Exit(FOUND)


def _show(state: Stored, found: Plan) -> None:
    for line in lines_of(found, run=state.job.run, newest_step=lambda: stored_newest_step(state)):
        text = Text.assemble(line.text, (line.marked, line.style)) if line.marked else line.text
        console.print(text, style=None if line.marked else line.style or None, soft_wrap=line.is_whole)
