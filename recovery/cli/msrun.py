"""`recovery msrun`."""

from __future__ import annotations

import os

import typer

from recovery.launch.command import msrun as launch


def msrun(context: typer.Context) -> None:
    """Hand on what was typed: the launcher reads its own flags."""
    raise typer.Exit(launch(context.args, os.environ))  # noqa: TID251 - handed on to the processes
