"""`recovery metrics`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from recovery import clock
from recovery.cli.formats import warn
from recovery.cli.options import MaybePath
from recovery.cli.source import path_of
from recovery.owner_files import write_over
from recovery.report.job_metrics import facts_of_path
from recovery.report.metrics_text import text_of

_READ_BY_ALL = 0o644
"""The node exporter has a user of its own."""


def metrics(
    path: MaybePath = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="write it into this file, which is replaced as a whole, a `.prom` of the textfile collector say"
        ),
    ] = None,
) -> None:
    """In the text format of Prometheus: once, of a job that runs or does not."""
    facts, unreadable = facts_of_path(path_of(path), clock.wall_ms())
    for unread in unreadable:
        warn(f"not counted: {unread}")
    text, _ = text_of(facts)
    if output is None:
        sys.stdout.write(text.decode())
    else:
        write_over(output, text, _READ_BY_ALL)
