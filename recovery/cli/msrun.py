"""`recovery msrun`: every field of `Arguments` that is a flag is an option of this command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from recovery.errors import UsageError
from recovery.launch.job_spec import JobSpec
from recovery.launch.msrun.arguments import Arguments
from recovery.store.paths import scheduler_path

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
    # Half of the time that --help and a wrong flag would take.
    from recovery.launch.msrun.host_check import check_host  # noqa: PLC0415 - as above

    given = arguments_of(context)
    spec = given.job_spec()
    check_host(given)
    raise typer.Exit(launch_and_sum_up(spec, os.environ))  # noqa: TID251 - handed on to the processes


def launch_and_sum_up(spec: JobSpec, environment: Mapping[str, str]) -> int:
    """Start and watch a job, and say how it went. Gives the exit code.

    Raises:
        SettingError, SecureChannelError: as `recovery.launch.command.launch`.
    """
    from recovery.launch.command import launch  # noqa: PLC0415 - as above

    if spec.continue_run is not None:
        environment = {**environment, "MS_CONTINUE": str(int(spec.continue_run))}
    log_dir = spec.log_dir.resolve()
    return launch(
        spec, environment, last_words=lambda code: _summary(code, spec.master_addr, log_dir, environment)
    )


def _summary(code: int, master: str, log_dir: Path, environment: Mapping[str, str]) -> list[str]:
    """How the job went, where its store is this host's; else how this host's part of it did."""
    path = Path(environment.get("MS_RECOVERY_PATH", ""))
    if environment.get("MS_ENABLE_RECOVERY") != "1":
        return []
    try:
        if not scheduler_path(path).exists():
            how = f"ended with {code}" if code else "are done"
            return [
                f"this host's workers {how}; {master}, where the scheduler ran, sums the job up; logs: {log_dir}"
            ]
        # The database is loaded once nobody waits any more.
        from recovery.report.job_summary import lines_of  # noqa: PLC0415 - as above

        return lines_of(path, log_dir)
    except Exception as error:  # noqa: BLE001 - a host without descriptors or memory has ended the job, and its exit code says so
        return [f"the job's end is not summed up: {type(error).__name__}: {error}"]


def arguments_of(context: typer.Context) -> Arguments:
    """What was typed.

    Raises:
        SettingError: a name and its other spelling are both given.
    """
    values = dict(context.params)
    task = values.pop("task") or ()
    return Arguments.of({name: value for name, value in values.items() if is_typed(context, name)}, task)


def is_typed(context: typer.Context, name: str) -> bool:
    """Was a flag given? By name: the class behind it is click's own or Typer's copy of it, as the release of Typer has it."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameters() -> Iterator[Parameter]:
    """The command's parameters, as Typer reads them from a function."""
    yield parameter("context", typer.Context, default=Parameter.empty)
    for field in msgspec.structs.fields(Arguments):
        for flag in getattr(field.type, "__metadata__", ()):
            names = [f"--{name}" for name in (field.name, *flag.aliases)]
            option = typer.Option(
                *names, parser=_reader(field.name, flag.read), metavar="VALUE", help=flag.help
            )
            default = None if field.default is msgspec.NODEFAULT else field.default
            yield parameter(field.name, Annotated[str | None, option], default)
    for name, instead in _SECRETS.items():
        option = typer.Option(f"--{name}", parser=_refuser(name, instead), hidden=True)
        yield parameter(name, Annotated[str | None, option])
    yield parameter("task", _Task)


def parameter(name: str, annotation: object, default: object = None) -> Parameter:
    """As Typer reads it."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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


msrun.__signature__ = Signature([*_parameters()])  # type: ignore[attr-defined]  # read by inspect, unknown to mypy
