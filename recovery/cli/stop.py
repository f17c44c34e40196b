"""`recovery stop`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recovery.launch.background import stop as stop_launcher


def stop(path: Annotated[Path, typer.Argument(help="the --log_dir of a job in the background")]) -> None:
    """End the launcher that runs in the background there, and with it its job's processes."""
    stop_launcher(path)
    typer.echo("stopped")
