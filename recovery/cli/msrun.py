"""`recovery msrun`: each of its flags is an option of this command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from recovery.cli.start import is_typed, launch_and_sum_up, parameter, take
from recovery.errors import UsageError
from recovery.launch.job_spec import JobSpec
from recovery.launch.msrun.flags import FLAGS, job_spec

_SECRETS = {
    "password": "Write it into a file of mode 0600, and give --client_password_file or --server_password_file.",
    "client_password": "Write it into a file of mode 0600, and give --client_password_file.",
    "server_password": "Write it into a file of mode 0600, and give --server_password_file.",
    "job_token": "Set MS_JOB_TOKEN in the environment, or give the hosts of the job one MS_RECOVERY_PATH.",
}
"""Flags that somebody could expect, and that there are none of: with what is to be done instead."""

_Task = Annotated[
    list[str] | None,
    # Without a parser a word would have to be text, and a path need not be.
    typer.Argument(metavar="task_script [arguments]", help="what every process runs", parser=str),
]


def msrun(context: typer.Context, **_: Any) -> None:
    """Start a job's processes and watch them."""
    # With the configuration, which --help and a wrong flag need none of.
    from recovery.launch.msrun.host_check import check_host  # noqa: PLC0415 - as above

    typed = _typed(context)
    spec = job_spec(typed, context.params["task"] or ())
    check_host(typed, spec.worker_num)
    raise typer.Exit(launch_and_sum_up(spec, os.environ))  # noqa: TID251 - handed on to the processes


def _typed(context: typer.Context) -> dict[str, Any]:
    """The flags that were given."""
    return {
        name: value for name, value in context.params.items() if name in FLAGS and is_typed(context, name)
    }


def _parameters() -> Iterator[Parameter]:
    """The command's parameters, as Typer reads them from a function."""
    yield parameter("context", typer.Context, default=Parameter.empty)
    defaults = {field.name: field.default for field in msgspec.structs.fields(JobSpec)}
    for name, flag in FLAGS.items():
        names = [f"--{name}" for name in (name, *flag.aliases)]
        option = typer.Option(*names, parser=_reader(name, flag.read), metavar="VALUE", help=flag.help)
        default = defaults.get(flag.field) if flag.default is None and name == flag.field else flag.default
        yield parameter(name, Annotated[str | None, option], default)
    for name, instead in _SECRETS.items():
        option = typer.Option(f"--{name}", parser=_refuser(name, instead), hidden=True)
        yield parameter(name, Annotated[str | None, option])
    yield parameter("task", _Task)


def _reader(name: str, read: Callable[[str, str], Any]) -> Callable[[Any], Any]:
    """What reads a flag's text. Typer passes defaults through it as well."""
    return lambda text: read(name, text) if isinstance(text, str) else text


def _refuser(name: str, instead: str) -> Callable[[str], NoReturn]:
    """What is given is in the list of processes by now, and need not be in a log as well."""

    def refuse(_: str) -> NoReturn:
        raise UsageError(
            field=f"--{name}",
            reason="every user of this host can read the arguments of a process, so no secret is taken from there",
            next_step=instead,
        )

    return refuse


take(msrun, _parameters())
