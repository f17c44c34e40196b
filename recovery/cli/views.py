"""The commands that show what is stored: each reads, words, and writes once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.live import Live
from rich.text import Text

from recovery import clock
from recovery.cli.form import Format
from recovery.cli.output import complain, console, print_json, print_line, show_rows, table_of, text_of
from recovery.core.converter import Converter
from recovery.core.records import CheckpointRecord, EventRecord, GenerationRecord
from recovery.errors import SettingTypeError, UsageError
from recovery.report import status as status_report
from recovery.report import stored as stored_state
from recovery.report import tables, timeline_image
from recovery.report.plan import Plan
from recovery.report.plan import plan as make_plan
from recovery.report.rank_progress import RunningProcesses, stored_newest_step
from recovery.report.stored import Stored
from recovery.report.timeline import read_timeline
from recovery.report.timeline_page import page
from recovery.store.reader import StoredEvent, read_checkpoints, read_events
from recovery.transport import inspection_client

_pause = threading.Event()
"""Nobody sets it: Ctrl+C ends the wait."""
_event = Converter(EventRecord)
_checkpoints = Converter(list[CheckpointRecord])
_generations = Converter(list[GenerationRecord])
_FOLLOW_S = 0.3
_PAGE = 1000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def status(path: Path | None, connect: str | None, *, as_json: bool) -> None:
    """One screen, from the files or from a running scheduler."""
    found = _status_of(_place(path, connect))
    if as_json:
        print_json(found)
    else:
        console.print(screen(found))


def _status_of(place: Path | tuple[str, int]) -> dict[str, Any]:
    if isinstance(place, Path):
        return status_report.status(stored_state.read(place))
    last = [_told(one) for one in _asked(place, "/events")[-status_report.LAST_EVENTS :]]
    return status_report.status_of_view(_asked(place, "/status"), last, place=f"{place[0]}:{place[1]}")


def screen(found: dict[str, Any]) -> Group:
    """The status for people."""
    scheduler = found["scheduler"]
    lives = f"pid {scheduler['pid'] or 'on its host'}" if scheduler["alive"] else "not running on this host"
    states = (
        ", ".join(f"{count} {state}" for state, count in sorted(found["workers_by_state"].items()))
        or "none yet"
    )
    facts = [
        ("job", f"{found['job']}, run {found['run']}"),
        ("state", found["state"]),
        *([("reason", found["reason"])] if found["reason"] else []),
        ("scheduler", f"{lives}, incarnation {scheduler['incarnation']}"),
        ("generation", f"{found['generation']}, began at step {found['generation_began_at_step'] or 0}"),
        ("workers", f"{states}; the world has {found['world_size']}"),
        (
            "step",
            f"{found['newest_step']}, {found['steps_since_checkpoint']} since the newest common checkpoint",
        ),
        (
            "checkpoint",
            f"step {found['committed_step']}" if found["committed_step"] else "none is common yet",
        ),
    ]
    lines: list[Any] = [Text.assemble((f"{name:<12}", "bold"), text_of(value)) for name, value in facts]
    if found["ranks"]:
        lines += [Text("\nranks", style="bold"), table_of(tables.RANKS, found["ranks"][:_RANKS_SHOWN])]
    if len(found["ranks"]) > _RANKS_SHOWN:
        lines += [Text(f"and {len(found['ranks']) - _RANKS_SHOWN} more (recovery steps)")]
    lines += [Text(f"not read: {told}", style="yellow") for told in found["unreadable"][:_RANKS_SHOWN]]
    if found["lost"]:
        lines += [Text("\nmissing", style="bold"), table_of(_MISSING, found["lost"][:_MISSING_SHOWN])]
    if len(found["lost"]) > _MISSING_SHOWN:
        lines += [Text(f"and {len(found['lost']) - _MISSING_SHOWN} more (recovery nodes)")]
    if found["last_events"]:
        lines += [Text("\nlast events", style="bold"), table_of(_STORY, found["last_events"])]
    return Group(*lines)


_RANKS_SHOWN = 16
_MISSING = tables.NODES.only("node_id", "rank", "incarnation", "state", "rejoin_left_s", "reason")
_MISSING_SHOWN = 12
"""A screen holds them beside the rest."""
_STORY = tables.EVENTS.only("time", "kind", "node", "step", "reason")


def top(path: Path | None, connect: str | None, *, interval_s: float) -> None:
    """The status, again and again, until Ctrl+C: in place on a terminal, else one below the other."""
    place = _place(path, connect)
    shown = screen(_status_of(place))  # what cannot be looked at at all is said at once
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        try:
            while True:
                if console.is_terminal:
                    live.update(shown, refresh=True)
                else:
                    console.print(shown)
                    console.file.flush()
                _pause.wait(interval_s)
                try:
                    shown = screen(_status_of(place))
                except UsageError as error:  # the scheduler is being started again
                    shown = Group(Text(str(error)))
        except KeyboardInterrupt:
            return


def nodes(path: Path | None, connect: str | None, form: Format) -> None:
    """All nodes, from the files or from a running scheduler."""
    place = _place(path, connect)
    if isinstance(place, Path):
        state = stored_state.read(place)
        rows = RunningProcesses(state).rows(state.nodes)
    else:
        rows = status_report.node_rows(_asked(place, "/status"))
    show_rows(tables.NODES, rows, form)


def _place(path: Path | None, connect: str | None) -> Path | tuple[str, int]:
    """Where to look: exactly one of the two."""
    if (path is None) == (connect is None):
        raise UsageError(
            field="PATH",
            reason="or --connect=HOST:PORT is needed, and only one of them",
            next_step="Name the job's MS_RECOVERY_PATH.",
        )
    if path is not None:
        return path
    host, _, port = str(connect).rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise SettingTypeError(
            field="--connect",
            value=connect,
            rule="must be HOST:PORT",
            next_step="Give, for example, --connect=127.0.0.1:8118.",
        )
    return host.strip("[]"), int(port)


def _told(one: dict[str, Any]) -> StoredEvent:
    """An event as a running scheduler tells it; its number is given by the store."""
    event = _event(one["event"])
    return StoredEvent(sequence=0, wall_ms=one["wall_ms"], event=event)


def _asked(place: tuple[str, int], path: str) -> Any:
    try:
        return asyncio.run(inspection_client.ask(*place, path))
    except inspection_client.NoView as error:
        raise UsageError(
            field=f"--connect={place[0]}:{place[1]}",
            reason=f"no scheduler answers there ({error})",
            next_step="Give its MS_SCHED_HOST and MS_SCHED_PORT, or the recovery path, which can be read while nobody lives.",
        ) from error


def steps(path: Path | None, connect: str | None, form: Format) -> list[str]:
    """What the workers have noted, or told a running scheduler. Gives what could not be read."""
    place = _place(path, connect)
    if isinstance(place, Path):
        found, unreadable = stored_state.progress(stored_state.read(place))
        show_rows(tables.STEPS, tables.STEPS.rows(found), form)
        return list(unreadable)
    show_rows(tables.STEPS, status_report.step_rows(_asked(place, "/status")), form)
    return []


def checkpoints(path: Path | None, connect: str | None, form: Format, *, retired_too: bool) -> None:
    """The checkpoints in the books, from the files or from a running scheduler."""
    place = _place(path, connect)
    if isinstance(place, Path):
        found = read_checkpoints(place) if retired_too else stored_state.read(place).checkpoints
        rows = tables.checkpoint_rows(found)
    elif retired_too:
        raise UsageError(
            field="--all",
            reason="needs the recovery path: a scheduler knows its books only",
            next_step="Name PATH instead of --connect.",
        )
    else:
        rows = tables.CHECKPOINTS.rows(_checkpoints(_asked(place, "/checkpoints")))
    show_rows(tables.CHECKPOINTS, rows, form)


def generations(path: Path | None, connect: str | None, form: Format) -> None:
    """All generations, from the files or from a running scheduler."""
    place = _place(path, connect)
    if isinstance(place, Path):
        found: Sequence[GenerationRecord] = stored_state.read(place).generations
    else:
        found = _generations(_asked(place, "/generations"))
    show_rows(tables.GENERATIONS, tables.GENERATIONS.rows(found), form)


class Asked(NamedTuple):
    """Which part of the story."""

    since: str | None
    """`10m`, or an ISO 8601 time; None: all of it."""
    node: str | None
    """Only about this node id; None: all."""
    limit: int
    """At most so many, the newest."""


def events(path: Path | None, connect: str | None, form: Format, asked: Asked, *, follow: bool) -> None:
    """The newest events, and with `follow` all that come after, until Ctrl+C; of a running scheduler the last of its life."""
    place = _place(path, connect)
    if isinstance(place, Path):
        _events_of_files(place, form, asked, follow=follow)
        return
    if follow or asked.since or asked.node:
        raise UsageError(
            field="--follow, --since and --node",
            reason="need the files of the story",
            next_step="Name the job's MS_RECOVERY_PATH instead of --connect.",
        )
    rows = tables.EVENTS.rows(_told(one) for one in _asked(place, "/events")[-asked.limit :])
    show_rows(tables.EVENTS, [{**row, "sequence": None} for row in rows], form)


def _events_of_files(path: Path, form: Format, asked: Asked, *, follow: bool) -> None:
    since_ms = _since_ms(asked.since) if asked.since else 0
    found = read_events(path, limit=asked.limit, newest=True, node_id=asked.node, since_ms=since_ms)
    if not follow:
        show_rows(tables.EVENTS, tables.EVENTS.rows(found), form)
        return
    after = found[-1].sequence if found else 0
    _show_stream(tables.EVENTS.rows(found), form, first=True)
    try:
        while True:
            _pause.wait(_FOLLOW_S)
            found = read_events(path, after=after, limit=_PAGE, node_id=asked.node, since_ms=since_ms)
            _show_stream(tables.EVENTS.rows(found), form, first=False)
            after = found[-1].sequence if found else after
    except KeyboardInterrupt:
        return


def _show_stream(rows: Sequence[dict[str, Any]], form: Format, *, first: bool) -> None:
    """A stream has no end: JSON is one document a line, and a table has no width to find out."""
    if form is Format.TABLE:
        for row in rows:
            words = (
                row["time"],
                row["kind"],
                row["node"] or "",
                f"step={row['step']}" if row["step"] else "",
                row["reason"],
            )
            print_line("  ".join(text_of(word).plain for word in words if word))
    elif form is Format.CSV:
        show_rows(tables.EVENTS, rows, Format.CSV, with_head=first)
    else:
        show_rows(tables.EVENTS, rows, Format.NDJSON)
    console.file.flush()


def _since_ms(text: str) -> int:
    """`10m`, `2h`: so long ago; else an ISO 8601 time, UTC where it names no zone."""
    now = datetime.fromtimestamp(clock.wall_ms() / 1000, timezone.utc)
    unit = _UNITS_S.get(text[-1:])
    try:
        if unit is not None:
            moment = now - timedelta(seconds=float(text[:-1]) * unit)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise SettingTypeError(
            field="--since",
            value=text,
            rule="must be a time such as 2026-11-21T10:00:00, or how long ago",
            next_step="Give, for example, --since=10m.",
        ) from None
    return int(moment.timestamp() * 1000)


# --- the story in time ---------------------------------------------------------------------------------------------------


def timeline(path: Path, *, html: Path | None, png: Path | None, run: int | None, as_json: bool) -> None:
    """Write the page and the picture, or tell goodput and each recovery with its parts."""
    state = stored_state.read(path)
    story, unreadable = read_timeline(state, run=run)
    for unread in unreadable:
        complain(f"not counted: {unread}")
    title = f"job {state.job.job[:8]}, run {story.run}: {state.job.state.value}"
    if html is not None:
        with html.open("x", encoding="utf-8") as stream:
            stream.write(page(story, job=state.job.job, state=state.job.state.value))
    if png is not None:
        timeline_image.write(story, png, title=title)
    if as_json:
        print_json(story.for_json())
        return
    wall_s = (story.end_ms - story.begin_ms) / 1000
    unknown = f", {story.unknown_ms / 1000:.1f} s of it unknown" if story.unknown_ms else ""
    print_line(f"{title}; goodput {story.goodput:.1%} of {wall_s:.1f} s{unknown}")
    if len(story.recoveries) > _SHOWN:
        print_line(f"the {_SHOWN} newest of {len(story.recoveries)} recoveries; --json and --html tell all")
    show_rows(_RECOVERIES, _RECOVERIES.rows(story.recoveries[-_SHOWN:]), Format.TABLE)


_SHOWN = 40
"""Recoveries that a person is shown at once."""
_RECOVERIES = tables.View(
    "recoveries",
    "What each failure cost, in seconds.",
    (
        tables.Column("generation", "that ended", lambda recovery: recovery.generation),
        tables.Column(
            "unknown_s", "from all ranks' last sign of life to the notice", lambda one: one.unknown_ms / 1000
        ),
        tables.Column("notice_s", "from the closed connection to the loss", lambda one: one.notice_ms / 1000),
        tables.Column("window_s", "until the last missing node was let in", lambda one: one.window_ms / 1000),
        tables.Column("start_s", "until the plan", lambda one: one.start_ms / 1000),
        tables.Column("rendezvous_s", "until rank 0 listened", lambda one: one.rendezvous_ms / 1000),
        tables.Column(
            "load_s", "until the last rank had formed the world and loaded", lambda one: one.load_ms / 1000
        ),
        tables.Column(
            "first_step_s", "until the last rank's first step", lambda one: one.first_step_ms / 1000
        ),
        tables.Column("total_s", "in all", lambda one: one.total_ms / 1000),
        tables.Column("lost_steps", "done again", lambda one: one.lost_steps),
        tables.Column("because", "the first failure", lambda one: one.because),
    ),
)


# --- what a restart would do ---------------------------------------------------------------------------------------------


def plan(path: Path, *, as_json: bool, allow_restart_from_zero: bool) -> bool:
    """Show it. Gives whether the job could go on."""
    state = stored_state.read(path)
    found = make_plan(state, allow_restart_from_zero=allow_restart_from_zero)
    if as_json:
        print_json(found)
    else:
        _tell(state, found)
    return found.action != "fail"


def _tell(state: Stored, found: Plan) -> None:
    words = {
        "resume": f"go on at step {found.step} (epoch {found.epoch}, step {found.step_in_epoch} in it)",
        "start": "start at step 0 with weights initialised anew",
        "new_run": f"begin run {state.job.run + 1} at step 0",
        "fail": "end the job: NO_COMMON_CHECKPOINT",
    }
    console.print(Text.assemble(("a restart now would ", ""), (words[found.action], "bold")))
    console.print(Text(f"why: {found.reason}"))
    if found.steps_lost:
        console.print(
            Text(f"steps to do again: {found.steps_lost} (the newest was {stored_newest_step(state)})")
        )
    for file in found.files:
        said = (
            Text("verified", style="green")
            if file.verified
            else Text(f"not verified: {file.why_not}", style="yellow")
        )
        console.print(
            Text.assemble(f"  rank {file.rank} ({file.node_id})  {file.path}  ", said), soft_wrap=True
        )
    for file in found.stepped_back:
        console.print(Text(f"  not usable: rank {file.rank}: {file.why_not}", style="red"), soft_wrap=True)
    for refused in found.refused:
        console.print(Text(f"  {refused['node_id']} is refused for {refused['rejoin_left_s']:g} s more"))
