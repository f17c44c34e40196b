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
    actions = {
        "resume": f"go on at step {found.step} (epoch {found.epoch}, step {found.step_in_epoch} in it)",
        "start": "start at step 0 with newly initialised weights",
        "new_run": f"begin run {state.job.run + 1} at step 0",
        "fail": "end the job: NO_COMMON_CHECKPOINT",
    }
    console.print(Text.assemble(("a restart now would ", ""), (actions[found.action], "bold")))
    console.print(f"why: {found.reason}")
    for guess in found.guesses:
        console.print(f"not known: {guess}", style="yellow")
    if found.steps_lost:
        console.print(f"steps to do again: {found.steps_lost} (the newest was {stored_newest_step(state)})")
    for file in found.files:
        result = (
            Text("verified", style="green")
            if file.verified
            else Text(f"not verified: {file.why_not}", style="yellow")
        )
        console.print(
            Text.assemble(f"  rank {file.rank} ({file.node_id})  {file.path}  ({file.tier})  ", result),
            soft_wrap=True,
        )
    for file in found.stepped_back:
        console.print(f"  not usable: rank {file.rank}: {file.why_not}", style="red", soft_wrap=True)
    for standby in found.standbys:
        rank = standby["takes_rank"]
        does = "stands by" if rank is None else f"is asked first to take rank {rank}"
        console.print(f"  {standby['node_id']} {does}")
    for refused in found.refused:
        taken = refused["rank_taken_by"]
        else_why = f", and nobody waits for it: {taken} has its rank" if taken else ""
        console.print(f"  {refused['node_id']} is refused for {refused['rejoin_left_s']:g} s more{else_why}")
