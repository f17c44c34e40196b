"""`recovery top`."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Annotated, NoReturn

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from recovery import clock
from recovery.cli.formats import console, is_a_terminal
from recovery.cli.options import Connect, MaybePath
from recovery.cli.source import Source, source_of
from recovery.cli.status_screen import screen, status_of
from recovery.errors import UsageError
from recovery.job_line import Pace

_pause = threading.Event()
"""Nobody sets it: Ctrl+C ends the wait."""


def top(
    path: MaybePath = None,
    connect: Connect = None,
    interval: Annotated[float, typer.Option(help="seconds between two looks", min=0.1)] = 1.0,
) -> None:
    """The status, again and again, until Ctrl+C: in place on a terminal, else one below the other."""
    source = source_of(path, connect)
    # What cannot be looked at at all ends the command here, before the screen is taken.
    shown = screen(status_of(source))
    try:
        _show_again_and_again(source, shown, interval)
    except KeyboardInterrupt:
        return


def _show_again_and_again(source: Source, shown: Group, interval: float) -> NoReturn:
    pace = Pace()
    with Live(console=console, screen=True, auto_refresh=False) if is_a_terminal() else nullcontext() as live:
        while True:
            if live is not None:
                live.update(shown, refresh=True)
            else:
                console.print(shown)
                console.file.flush()
            _pause.wait(interval)
            try:
                found = status_of(source)
                shown = screen(found, pace.note(found["newest_step"], clock.monotonic_ms()))
            except UsageError as error:
                # The scheduler may be restarting.
                shown = Group(Text(str(error)))
