"""What the commands that start a job have in common: their options, and what is said at the job's end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import typer

from recovery.errors import RecoveryPathError
from recovery.launch.job_spec import JobSpec
from recovery.store.paths import scheduler_path
from recovery.transport.local_address import is_local

RUN_PATH = "recovery"
"""Where `recovery run` keeps a job whose MS_RECOVERY_PATH is not set, below the working directory."""


def launch_and_sum_up(spec: JobSpec, environment: Mapping[str, str]) -> int:
    """Start and watch a job, and say how it went. Gives the exit code.

    Raises:
        SettingError, SecureChannelError: as `recovery.launch.command.launch`.
    """
    # Half of the time that --help and a wrong flag would take.
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
            if is_local(master):
                return [f"the job had not begun: its scheduler has made no store in {path}; logs: {log_dir}"]
            how = f"ended with {code}" if code else "are done"
            return [
                f"this host's workers {how}; {master}, where the scheduler ran, sums the job up; logs: {log_dir}"
            ]
        # The database is loaded once nobody waits any more.
        from recovery.report.job_summary import lines_of  # noqa: PLC0415 - as above

        return lines_of(path, log_dir)
    except RecoveryPathError:
        # The scheduler has made a store, and ended before there was a job in it.
        return [f"the job had not begun; logs: {log_dir}"]
    except Exception as error:  # noqa: BLE001 - a host without descriptors or memory has ended the job, and its exit code says so
        return [f"the job's end is not summed up: {type(error).__name__}: {error}"]


def is_typed(context: typer.Context, name: str) -> bool:
    """Was a flag given? By name: the class behind it is click's own or Typer's copy of it, as the release of Typer has it."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def parameter(name: str, annotation: object, default: object = None) -> Parameter:
    """As Typer reads it."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def take(command: Any, parameters: Iterable[Parameter]) -> None:
    """Give a command its parameters, made from a table: Typer reads a function's by inspect."""
    command.__signature__ = Signature([*parameters])
