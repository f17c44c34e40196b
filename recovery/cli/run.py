"""`recovery run`: torchrun's command line, with recovery on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from recovery.cli import torchrun_line
from recovery.cli.devices_seen import devices_seen
from recovery.cli.start import RUN_PATH, is_typed, launch_and_sum_up, parameter, take
from recovery.launch.slurm.node_address import reached_at
from recovery.transport.local_address import reserved_port

_CONTINUE = "a finished job's path: its run goes on from its last checkpoint, to a later end; or its next run begins at step 0"
_SHORT = {"tee": "-t", "redirects": "-r"}


def run(context: typer.Context, **_: Any) -> None:
    """Start a script as torchrun would, with recovery on."""
    environment = dict(os.environ)  # noqa: TID251 - handed on to the processes
    # Held until the job is over: the scheduler listens there, and is started again there.
    reserved = reserved_port("127.0.0.1")
    machine = torchrun_line.Machine(
        processors=len(os.sched_getaffinity(0)),
        devices=lambda word: devices_seen(word, environment),
        free_port=int(reserved.getsockname()[1]),
        environment=environment,
        address_of=lambda host: reached_at(host, environment),
    )
    line = line_of(context, machine)
    if environment.setdefault("MS_ENABLE_RECOVERY", "1") == "1" and "MS_RECOVERY_PATH" not in environment:
        environment["MS_RECOVERY_PATH"] = str(Path(RUN_PATH).absolute())
        typer.echo(f"recovery is on: its state is in ./{RUN_PATH} (MS_RECOVERY_PATH names another directory)")
    for note in line.notes:
        typer.echo(note)
    with reserved:
        raise typer.Exit(launch_and_sum_up(line.spec, environment))


def line_of(context: typer.Context, machine: torchrun_line.Machine) -> torchrun_line.Line:
    """What was typed, as a host like this reads it.

    Raises:
        SettingError: as `torchrun_line.read`.
    """
    given = {name: value for name, value in context.params.items() if is_typed(context, name)}
    task = given.pop("task", None) or ()
    return torchrun_line.read(given, task, machine)


def _parameters() -> Iterator[Parameter]:
    """The command's parameters, as Typer reads them from a function."""
    yield parameter("context", typer.Context, default=Parameter.empty)
    alone = typer.Option("--standalone", help="one host: a free port of the loopback address")
    yield parameter("standalone", Annotated[bool, alone], default=False)
    module = typer.Option("-m", "--module", help="the task is a module")
    yield parameter("module", Annotated[bool, module], default=False)
    go_on = typer.Option("--continue/--new-run", help=_CONTINUE)
    yield parameter("continue_run", Annotated[bool | None, go_on])
    for name, flag in torchrun_line.FLAGS.items():
        option = typer.Option(*_names(name), metavar="VALUE", help=flag.help)
        yield parameter(name, Annotated[str | None, option])
    for name in {**torchrun_line.WITHOUT_EFFECT, **torchrun_line.REFUSED}:
        if name not in torchrun_line.FLAGS:
            yield parameter(name, Annotated[str | None, typer.Option(*_names(name), hidden=True)])
    task = typer.Argument(metavar="script [arguments]", help="what every process runs", parser=str)
    yield parameter("task", Annotated[list[str] | None, task])


def _names(name: str) -> tuple[str, ...]:
    return (f"--{name}", *([_SHORT[name]] if name in _SHORT else []))


take(run, _parameters())
