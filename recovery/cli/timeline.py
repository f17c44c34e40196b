"""`recovery timeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recovery.cli.formats import Format, print_json, print_line, show_rows, warn
from recovery.cli.options import AsJson, MaybePath
from recovery.cli.source import path_of
from recovery.file_systems import write_new
from recovery.report import stored as stored_state
from recovery.report import tables, timeline_image
from recovery.report.rank_progress import RunningProcesses
from recovery.report.timeline import read_timeline
from recovery.report.timeline_page import page
from recovery.report.trace import trace as trace_of

_SHOWN = 40
"""Recoveries that a person is shown at once."""


def _seconds(part: str, meaning: str) -> tables.Column:
    return tables.Column(f"{part}_s", meaning, lambda recovery: getattr(recovery, f"{part}_ms") / 1000)


_RECOVERIES = tables.View(
    "recoveries",
    "What each failure cost, in seconds.",
    (
        tables.Column("generation", "that ended", lambda recovery: recovery.generation),
        _seconds("unknown", "from the last that all ranks were heard to the notice"),
        _seconds("notice", "from the closed connection, or the last step of a rank that hung, to the loss"),
        _seconds("window", "until the last missing node was let in"),
        _seconds("start", "until the plan"),
        _seconds("rendezvous", "until rank 0 listened"),
        _seconds("load", "until the last rank had formed the world and loaded"),
        _seconds("first_step", "until the last rank's first step"),
        _seconds("total", "in all"),
        tables.Column("lost_steps", "done again", lambda recovery: recovery.lost_steps_text),
        tables.Column("because", "the first failure", lambda recovery: recovery.because_text),
    ),
)


def timeline(
    path: MaybePath = None,
    html: Annotated[Path | None, typer.Option(help="write the timeline as a page into this new file")] = None,
    png: Annotated[Path | None, typer.Option(help="and as a picture into this one")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="and as a trace, which ui.perfetto.dev opens, into this one")
    ] = None,
    run: Annotated[int | None, typer.Option(help="of the job; the newest without it", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Write page, picture and trace, or show goodput and each recovery with its parts."""
    path = path_of(path)
    state = stored_state.read_stored(path)
    found, unreadable = read_timeline(state, run=run)
    for unread in unreadable:
        warn(f"not counted: {unread}")
    if found.begins_later:
        warn(
            f"it begins with generation {found.plans[0][1] if found.plans else 0}: older events were deleted, see `history_thinned`"
        )
    job_state = RunningProcesses(state).job_state
    title = f"job {state.job.job[:8]}, run {found.run}: {job_state}"
    if html is not None:
        write_new(html, page(found, job=state.job.job, state=job_state).encode())
    if png is not None:
        timeline_image.write(found, png, title=title)
    if trace is not None:
        write_new(trace, trace_of(found, stored_state.event_log(state.path), job=state.job.job))
    if as_json:
        print_json(found.for_json())
        return
    wall_s = (found.end_ms - found.begin_ms - found.paused_ms) / 1000
    paused = f", and {found.paused_ms / 1000:.1f} s stopped on purpose" if found.paused_ms else ""
    unknown = f", {found.unknown_ms / 1000:.1f} s of it unknown" if found.unknown_ms else ""
    print_line(f"{title}; goodput {found.goodput_text} of {wall_s:.1f} s{unknown}{paused}")
    if len(found.recoveries) > _SHOWN:
        print_line(f"the {_SHOWN} newest of {len(found.recoveries)} recoveries; --json and --html show all")
    if found.recoveries:
        show_rows(_RECOVERIES, _RECOVERIES.rows(found.recoveries[-_SHOWN:]), Format.TABLE)
