"""`recovery`: one command, its parts loaded when they are used."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from recovery.errors import RecoveryError

app = typer.Typer(
    help="Recovery engine for data-parallel training.", no_args_is_help=True, add_completion=True
)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def msrun(context: typer.Context) -> None:
    """Start a job's processes on this host, watch them, bring the dead back. `recovery msrun --help` lists the flags."""
    from recovery.launch.command import msrun as launch  # noqa: PLC0415 - other commands need none of it

    raise typer.Exit(launch(context.args, os.environ))  # noqa: TID251 - handed on to the processes


@app.command()
def scheduler(
    with_pid: Annotated[
        int | None, typer.Option(help="end when this process of the same host has ended")
    ] = None,
) -> None:
    """Be the scheduler of the job that the MS_* variables describe, until it ends. Imports no framework."""
    from recovery.launch.scheduler_process import serve  # noqa: PLC0415 - other commands need none of it

    serve(os.environ, with_pid=with_pid)  # noqa: TID251 - read by recovery.config


@app.command()
def stop(path: Annotated[Path, typer.Argument(help="the --log_dir of a job in the background")]) -> None:
    """End a job that `recovery msrun --join=False` has started."""
    from recovery.launch.background import stop as stop_agent  # noqa: PLC0415 - other commands need none of it

    stop_agent(path)
    typer.echo("stopped")


def main() -> None:
    """Run the command; an error of ours is one line and its exit code."""
    try:
        app()
    except RecoveryError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
