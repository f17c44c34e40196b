"""`recovery scheduler`: the scheduler as a program of its own. A training script with MS_ROLE=MS_SCHED does the same."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from recovery import config, log
from recovery.training import bootstrap, process_end


def scheduler(
    with_pid: Annotated[
        int | None, typer.Option(help="end when this process of the same host has ended")
    ] = None,
) -> None:
    """Serve one job until it ends, and end this process: with 0, or the exit code of the error that its last line names."""
    with process_end.one_clear_line():
        settings = config.load({**os.environ, "MS_ROLE": "MS_SCHED"})  # noqa: TID251 - read by recovery.config
        log.setup(settings.role.value)
        bootstrap.serve(settings, with_pid=with_pid)
