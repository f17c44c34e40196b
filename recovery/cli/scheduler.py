"""`recovery scheduler`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from recovery.launch.scheduler_command import serve


def scheduler(
    with_pid: Annotated[
        int | None, typer.Option(help="end when this process of the same host has ended")
    ] = None,
) -> None:
    """Serve one job until it ends."""
    serve(os.environ, with_pid=with_pid)  # noqa: TID251 - read by recovery.config
