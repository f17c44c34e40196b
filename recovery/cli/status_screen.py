"""The status of a job on one screen, as `status` shows it once and `top` keeps it up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from recovery import job_line
from recovery.cli.formats import table_of, text_of
from recovery.cli.source import Address, Source, ask, event_of
from recovery.report import status as status_report
from recovery.report import stored as stored_state
from recovery.report import tables

# A screen holds so many beside the rest.
_RANKS_SHOWN = 16
_MISSING = tables.NODES.only("node_id", "rank", "incarnation", "state", "rejoin_left_s", "reason")
_STANDBYS_SHOWN = 8
_MISSING_SHOWN = 12
_EVENTS = tables.EVENTS.only("time", "kind", "node", "step", "reason")


def status_of(source: Source) -> dict[str, Any]:
    """Where the job stands, as plain values by key."""
    if isinstance(source, Path):
        return status_report.status(stored_state.read_stored(source))
    return status_of_scheduler(source)


def status_of_scheduler(address: Address, recovery_path: Path | None = None) -> dict[str, Any]:
    """The same as a running scheduler knows it. Arguments and errors as of `ask`."""
    events = [event_of(row) for row in ask(address, "/events", recovery_path)]
    view = ask(address, "/status", recovery_path)
    return status_report.status_of_view(view, events, place=f"{address[0]}:{address[1]}")


def screen(found: dict[str, Any], per_s: float = 0.0) -> Group:
    """The status for people.

    Args:
        found: as `status_of` gives it.
        per_s: steps per second, where somebody has looked more than once; 0: nobody knows.
    """
    scheduler = found["scheduler"]
    process = f"pid {scheduler['pid'] or 'on its host'}" if scheduler["alive"] else "not running on this host"
    states = (
        ", ".join(f"{count} {state}" for state, count in sorted(found["workers_by_state"].items()))
        or "none yet"
    )
    facts = [
        ("job", f"{found['job']}, run {found['run']}"),
        ("state", found["state"]),
        *_training(found, per_s),
        *([("waits for", _waits_for(found))] if found["waits_for"] else []),
        *([("hang", hang_text(found))] if found["hang"] else []),
        *([("slow", slow)] if (slow := slow_text(found)) else []),
        *([("leaving", job_line.leaving_of(found))] if found["leaving"] else []),
        *([("reason", found["reason"])] if found["reason"] else []),
        ("scheduler", f"{process}, incarnation {scheduler['incarnation']}"),
        ("generation", f"{found['generation']}, began at step {found['generation_began_at_step'] or 0}"),
        ("workers", f"{states}; the world has {found['world_size']}"),
        *([("standbys", _standbys(found["standbys"]))] if found["standbys"] else []),
        *([("warming up", _first(found["warming_up"]))] if found["warming_up"] else []),
        (
            "step",
            f"{found['newest_step']}, {found['steps_since_checkpoint']} since the newest common checkpoint",
        ),
        (
            "checkpoint",
            f"step {found['committed_step']}" if found["committed_step"] else "none is common yet",
        ),
        *([("notices", _notices(found["notices"]))] if found["notices"] else []),
        *([("failed", failed)] if (failed := failed_work(found)) else []),
    ]
    lines: list[Any] = [Text.assemble((f"{name:<12}", "bold"), text_of(value)) for name, value in facts]
    if found["ranks"]:
        lines += [Text("\nranks", style="bold"), table_of(tables.RANKS, found["ranks"][:_RANKS_SHOWN])]
    if len(found["ranks"]) > _RANKS_SHOWN:
        lines += [Text(f"and {len(found['ranks']) - _RANKS_SHOWN} more (recovery steps)")]
    lines += [Text(f"not read: {unread}", style="yellow") for unread in found["unreadable"][:_RANKS_SHOWN]]
    if found["lost"]:
        lines += [Text("\nmissing", style="bold"), table_of(_MISSING, found["lost"][:_MISSING_SHOWN])]
    if len(found["lost"]) > _MISSING_SHOWN:
        lines += [Text(f"and {len(found['lost']) - _MISSING_SHOWN} more (recovery nodes)")]
    if found["shown_events"]:
        lines += [Text("\nlast events", style="bold"), table_of(_EVENTS, found["shown_events"])]
    return Group(*lines)


def _notices(count: int) -> str:
    times = "once" if count == 1 else f"{count} times"
    return f"{times} ranks, or the whole job, were asked to leave; that uses up no restart"


_FAILED_WORK = (
    ("not_copied", "copy", "copies"),
    ("not_uploaded", "upload", "uploads"),
    ("not_saved", "save", "saves"),
)
"""Where each is counted, and what one and several are called."""


def failed_work(found: dict[str, Any]) -> str:
    """What failed beside training in this run, and the newest of it; empty: nothing. A scheduler of an earlier release does not count all."""
    counted = [(found[key] or 0, one, several) for key, one, several in _FAILED_WORK]
    said = ", ".join(
        f"{count} {one if count == 1 else several} failed" for count, one, several in counted if count
    )
    return f"{said}; the last: {found['last_failed']}" if said and found["last_failed"] else said


def _training(found: dict[str, Any], per_s: float) -> list[tuple[str, str]]:
    """The same words as below the ranks' output on the launcher's terminal, where there is more to tell than the step."""
    told = [found[key] for key in ("epoch", "total_steps", "loss")]
    if not found["newest_step"] or not (per_s or any(value is not None for value in told)):
        return []
    parts = job_line.training_parts(job_line.Training(found["newest_step"], *told), per_s)
    return [("training", "  ".join(part.text for part in parts))]


def hang_text(found: dict[str, Any]) -> str:
    """Who may hang, and where; empty: nobody is suspected."""
    if not found["hang"]:
        return ""
    frames = found["hang"]["stack"].splitlines()
    return f"{job_line.hang_of(found)}{f'; its main thread is at {frames[-1]}' if frames else ''}"


def slow_text(found: dict[str, Any]) -> str:
    """Which rank the others wait for in each step, and by what; empty: none is told to be slow."""
    stragglers = found["stragglers"]
    more = f"; and {len(stragglers) - 1} more (recovery events)" if len(stragglers) > 1 else ""
    return f"{stragglers[0]['reason']}{more}" if stragglers else ""


def _waits_for(found: dict[str, Any]) -> str:
    since = f" (for {job_line.duration(found['waits_s'])})" if found["waits_s"] is not None else ""
    return ", ".join(found["waits_for"]) + since


def _first(names: list[str]) -> str:
    more = len(names) - _STANDBYS_SHOWN
    return ", ".join(names[:_STANDBYS_SHOWN]) + (f" and {more} more (recovery nodes)" if more > 0 else "")


def _standbys(rows: list[dict[str, Any]]) -> str:
    """How many wait to take a rank over, and which."""
    states = ("warming up" if row["warming_up"] else row["state"] for row in rows)
    names = [f"{row['node_id']} ({state})" for row, state in zip(rows, states, strict=True)]
    return f"{len(rows)}: {_first(names)}"
