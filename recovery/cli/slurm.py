"""`recovery slurm`: a job's batch script, printed or given to sbatch."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated, Any

import typer

from recovery.cli import torchrun_line
from recovery.cli.main import load
from recovery.cli.run import line_of
from recovery.cli.start import is_typed
from recovery.errors import SettingError
from recovery.launch.slurm import batch_script

_SOME_HOST = torchrun_line.Machine(processors=1, devices=lambda _: 1, free_port=29400)
"""What a host of the allocation has is known there."""


def slurm(
    context: typer.Context,
    _nodes: Annotated[str, typer.Option("--nodes", "-N", metavar="N", help="hosts that train")] = "1",
    _spares: Annotated[
        str,
        typer.Option("--spares", metavar="K", help="hosts that wait, and take the ranks of one that is lost"),
    ] = "0",
    _notice: Annotated[
        str,
        typer.Option(
            "--notice",
            metavar="SECONDS",
            help="how long before its time limit the job saves, ends and goes back into the queue",
        ),
    ] = str(batch_script.NOTICE_S),
    _recovery_path: Annotated[
        str,
        typer.Option(
            "--recovery-path",
            metavar="PATH",
            help="where the job's state is; ./recovery. On a file server that cannot hold it, a local directory of every host",
        ),
    ] = "recovery",
    _submit: Annotated[bool, typer.Option("--submit", help="give it to sbatch")] = False,
) -> None:
    """Write the batch script of a job."""
    words = context.meta["words"]
    line = batch_script.read(words)
    # A mistake is said now, and not when the job's turn has come.
    launched = load("run").make_context("recovery run", list(line.run))
    line_of(launched, _SOME_HOST)
    if not is_typed(launched, "nproc_per_node") and "PET_NPROC_PER_NODE" not in os.environ:  # noqa: TID251 - torchrun's default, which sbatch hands on
        line, note = batch_script.with_workers(line)
        # Standard output may be the script.
        typer.echo(note, err=True)
    script = batch_script.render(line, words, sys.executable)
    if not line.submit:
        typer.echo(script, nl=False)
        return
    try:
        asked: Any = subprocess.run(["sbatch"], input=script, text=True, check=False)  # noqa: S607 - Slurm's own
    except FileNotFoundError as error:
        raise SettingError(
            "SETTING_RANGE",
            field="--submit",
            value="sbatch",
            rule="is not found on this host",
            next_step="Run this on a login node of the cluster, or leave --submit out and give the script to sbatch there.",
        ) from error
    raise typer.Exit(asked.returncode)
