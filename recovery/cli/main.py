"""`recovery`: one command, its parts loaded when they are used."""

from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from recovery.cli.form import Format
from recovery.errors import RecoveryError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

_PACKAGE = "recovery-engine"
_FOUND = 1
"""Exit code of a check that found something."""
_ABSENT = 65
"""What was named cannot be read or written by this command (EX_DATAERR of sysexits.h)."""


RecoveryPath = Annotated[
    Path, typer.Argument(help="the job's MS_RECOVERY_PATH", metavar="PATH", readable=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="for programs: one JSON document")]
MaybePath = Annotated[
    Path | None, typer.Argument(help="the job's MS_RECOVERY_PATH", metavar="[PATH]", readable=False)
]
Connect = Annotated[
    str | None, typer.Option(help="HOST:PORT of a running scheduler, instead of PATH", metavar="HOST:PORT")
]
Rows = Annotated[Format, typer.Option("--format", help="table, json, ndjson or csv")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]


def _print_version(asked: bool) -> None:
    if asked:
        from importlib import metadata  # noqa: PLC0415 - other commands need none of it

        typer.echo(f"{_PACKAGE} {metadata.version(_PACKAGE)}")
        raise typer.Exit


@app.callback()
def recovery(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and end"),
    ] = False,
) -> None:
    """Recovery engine for data-parallel training."""


def _form(form: Format, as_json: bool) -> Format:
    return Format.JSON if as_json else form


# --- starting -------------------------------------------------------------------------------------------------------------


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    rich_help_panel="Start a job",
)
def msrun(context: typer.Context) -> None:
    """Start a job's processes on this host, watch them, bring the dead back. `recovery msrun --help` lists the flags."""
    from recovery.launch.command import msrun as launch  # noqa: PLC0415 - other commands need none of it

    raise typer.Exit(launch(context.args, os.environ))  # noqa: TID251 - handed on to the processes


@app.command(rich_help_panel="Start a job")
def scheduler(
    with_pid: Annotated[
        int | None, typer.Option(help="end when this process of the same host has ended")
    ] = None,
) -> None:
    """Be the scheduler of the job that the MS_* variables describe, until it ends. Imports no framework."""
    from recovery.launch.scheduler_command import serve  # noqa: PLC0415 - other commands need none of it

    serve(os.environ, with_pid=with_pid)  # noqa: TID251 - read by recovery.config


@app.command(rich_help_panel="Start a job")
def stop(path: Annotated[Path, typer.Argument(help="the --log_dir of a job in the background")]) -> None:
    """End a job that `recovery msrun --join=False` has started."""
    from recovery.launch.background import stop as stop_agent  # noqa: PLC0415 - other commands need none of it

    stop_agent(path)
    typer.echo("stopped")


# --- looking --------------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel="Look at a job")
def status(path: MaybePath = None, connect: Connect = None, as_json: AsJson = False) -> None:
    """Where the job stands: state, who is missing, newest common checkpoint, last events."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    views.status(path, connect, as_json=as_json)


@app.command(rich_help_panel="Look at a job")
def top(
    path: MaybePath = None,
    connect: Connect = None,
    interval: Annotated[float, typer.Option(help="seconds between two looks", min=0.1)] = 1.0,
) -> None:
    """The status, kept up to date."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    views.top(path, connect, interval_s=interval)


@app.command(rich_help_panel="Look at a job")
def nodes(
    path: MaybePath = None, connect: Connect = None, form: Rows = Format.TABLE, as_json: AsJson = False
) -> None:
    """The nodes: rank, incarnation, state, step, why."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    views.nodes(path, connect, _form(form, as_json))


@app.command(rich_help_panel="Look at a job")
def steps(
    path: MaybePath = None, connect: Connect = None, form: Rows = Format.TABLE, as_json: AsJson = False
) -> None:
    """How far each worker has noted that it is."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    unreadable = views.steps(path, connect, _form(form, as_json))
    for line in unreadable:
        typer.echo(line, err=True)
    if unreadable:
        raise typer.Exit(_FOUND)


@app.command(rich_help_panel="Look at a job")
def checkpoints(
    path: MaybePath = None,
    connect: Connect = None,
    form: Rows = Format.TABLE,
    as_json: AsJson = False,
    retired_too: Annotated[bool, typer.Option("--all", help="those that the books have retired too")] = False,
) -> None:
    """Every rank's checkpoints, newest first."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    views.checkpoints(path, connect, _form(form, as_json), retired_too=retired_too)


@app.command(rich_help_panel="Look at a job")
def generations(
    path: MaybePath = None, connect: Connect = None, form: Rows = Format.TABLE, as_json: AsJson = False
) -> None:
    """The generations: where each began, why, and why it ended."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    views.generations(path, connect, _form(form, as_json))


@app.command(rich_help_panel="Look at a job")
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
    """The story of the job, oldest first."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    asked = views.Asked(since=since, node=node, limit=limit)
    views.events(path, connect, _form(form, as_json), asked, follow=follow)


@app.command(rich_help_panel="Look at a job")
def plan(
    path: RecoveryPath,
    as_json: AsJson = False,
    allow_restart_from_zero: Annotated[
        bool, typer.Option("--allow-restart-from-zero", help="as with MS_ALLOW_RESTART_FROM_ZERO=1")
    ] = False,
) -> None:
    """What a restart now would do: target step, each rank's file and whether it verifies, steps lost, who is still refused."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    if not views.plan(path, as_json=as_json, allow_restart_from_zero=allow_restart_from_zero):
        raise typer.Exit(_FOUND)


@app.command(rich_help_panel="Look at a job")
def timeline(
    path: RecoveryPath,
    html: Annotated[Path | None, typer.Option(help="write the story as a page into this new file")] = None,
    png: Annotated[Path | None, typer.Option(help="and as a picture into this one")] = None,
    run: Annotated[int | None, typer.Option(help="of the job; the newest without it", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """The story in time: a lane per rank, goodput, and what each failure cost, part by part."""
    from recovery.cli import views  # noqa: PLC0415 - --help needs none of it

    views.timeline(path, html=html, png=png, run=run, as_json=as_json)


# --- caring ---------------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel="Care for a job")
def verify(path: RecoveryPath, as_json: AsJson = False) -> None:
    """Check databases, rows, checkpoints and manifests. Exit code 1 with one line per finding."""
    from recovery.cli import care  # noqa: PLC0415 - --help needs none of it

    if not care.verify(path, as_json=as_json):
        raise typer.Exit(_FOUND)


@app.command(rich_help_panel="Care for a job")
def export(path: RecoveryPath, file: Annotated[Path, typer.Argument(help="a new file")]) -> None:
    """Everything that is stored, in one JSON document, for a bug report. Holds no secrets."""
    from recovery.cli import care  # noqa: PLC0415 - --help needs none of it

    care.export(path, file)
    typer.echo(f"written: {file}")


@app.command(rich_help_panel="Care for a job")
def forget(
    path: RecoveryPath, node: Annotated[str, typer.Argument(help="node id")], yes: Yes = False
) -> None:
    """End a lost node's rejoin window now. Refused while a scheduler runs."""
    from recovery.cli import care  # noqa: PLC0415 - --help needs none of it

    _confirm(f"Let {node} back in at once, although its old process might still live?", yes)
    care.forget(path, node)
    typer.echo(f"{node} is forgotten: its next process is let in at once, with its rank")


@app.command(rich_help_panel="Care for a job")
def reset(path: RecoveryPath, yes: Yes = False) -> None:
    """Lay the job's state aside, so that the next start is a new job. Deletes nothing. Refused while a process uses it."""
    from recovery.cli import care  # noqa: PLC0415 - --help needs none of it

    _confirm(f"Lay aside all state of the job in {path}? Training then starts at step 0.", yes)
    typer.echo(f"laid aside: {care.reset(path)}")


@app.command(rich_help_panel="Care for a job")
def rebuild(path: RecoveryPath, yes: Yes = False) -> None:
    """Make a scheduler's lost store again, from the workers' own stores and checkpoints. Deletes nothing; refused where one is there."""
    from recovery.cli import care  # noqa: PLC0415 - --help needs none of it

    _confirm(f"Rebuild the scheduler's store of the job in {path} from what its workers have noted?", yes)
    told, aside = care.rebuild(path)
    typer.echo(f"rebuilt: {told}")
    if aside is not None:
        typer.echo(f"what was left of the old one: {aside}")


@app.command(rich_help_panel="Look at this machine")
def env(form: Rows = Format.TABLE, as_json: AsJson = False) -> None:
    """Every MS_* variable: value, where it comes from, rule."""
    from recovery.cli import care  # noqa: PLC0415 - --help needs none of it

    care.environment(os.environ, _form(form, as_json))  # noqa: TID251 - read by recovery.config


@app.command(rich_help_panel="Look at this machine")
def doctor(as_json: AsJson = False) -> None:
    """Check the environment before a job: variables, port, recovery path, disk, clock, frameworks, devices. Exit code 1 on a finding."""
    from recovery.cli import care  # noqa: PLC0415 - --help needs none of it

    if not care.doctor(os.environ, as_json=as_json):  # noqa: TID251 - read by recovery.config
        raise typer.Exit(_FOUND)


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True)


def main() -> None:
    """Run the command; an error of ours is one line and its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path need not be text
    try:
        app()
    except RecoveryError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except OSError as error:  # a file that this command was given
        typer.echo(f"{error.filename or 'a file'}: {error.strerror or error}", err=True)
        sys.exit(_ABSENT)
    finally:
        gc.freeze()  # the interpreter's end would look for cycles among all that was read


if __name__ == "__main__":
    main()
