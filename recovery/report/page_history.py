"""What happened in a job's newest run, as the live page draws it (recovery/page/assets)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recovery.core.records import CheckpointState, EventKind
from recovery.report.metrics import ettr
from recovery.report.node_spans import Doing, Span, by_slot, visible
from recovery.report.rank_progress import RunningProcesses
from recovery.report.stored import Stored, read_stored
from recovery.report.tables import checkpoint_rows
from recovery.report.timeline import Timeline, read_timeline
from recovery.report.timeline_page import COLOURS, Scale
from recovery.store.reader import read_newest_events

_PIXELS = 4_000
"""As wide as a screen may be; what is narrower than one of them becomes part of its neighbour."""
_STEPS = 12
_RECOVERIES = 200
"""Shown at most: the newest."""
_CODES = {doing: code for code, doing in enumerate(COLOURS)}


def history_of_path(path: Path, now_ms: int) -> dict[str, Any]:
    """The same by the files of a recovery path. Errors as of `read_stored`."""
    return history(read_stored(path), now_ms)


def history(stored: Stored, now_ms: int) -> dict[str, Any]:
    """As plain values. Times are milliseconds since 1970 UTC, as `now_ms` is. Errors as of `read_timeline`."""
    timeline, unreadable = read_timeline(stored)
    state = RunningProcesses(stored).job_state
    return {
        "run": timeline.run,
        "begin_ms": timeline.begin_ms,
        "end_ms": timeline.end_ms,
        "key": [{"colour": colour, "meaning": meaning} for colour, meaning in COLOURS.values()],
        "goodput": timeline.known_goodput,
        "ettr": ettr(timeline, state, now_ms),
        "failures": timeline.failures,
        "resumptions": timeline.resumptions,
        "lost_steps": timeline.lost_steps_text,
        "hangs": timeline.hangs,
        "mismatches": timeline.mismatches,
        "stragglers": timeline.stragglers,
        "mismatch": _newest_mismatch(stored, timeline.run),
        "unreadable": list(unreadable),
        "checkpoints": _checkpoints(stored),
        **_drawn(timeline),
    }


def _newest_mismatch(stored: Stored, run: int) -> str:
    """Which ranks differed at which step, and in what; empty: none did."""
    for found in read_newest_events(stored.path, {EventKind.REPLICAS_DIFFER}, 1):
        if found.event.run == run:
            return f"step {found.event.step}: {found.event.reason}"
    return ""


def _drawn(timeline: Timeline) -> dict[str, Any]:
    """What the drawing shows."""
    x = Scale.of(timeline, left=0, right=_PIXELS)
    return {
        "rows": [[slot, _spans(spans, x.pixel_ms)] for slot, spans in by_slot(timeline.spans).items()],
        "plans": list(x.apart(timeline.plans, least=2)),
        "commits": list(x.apart(timeline.commits)),
        "outages": timeline.outages,
        "recoveries": [
            {
                "at_ms": recovery.at_ms,
                "because": recovery.because_text,
                "parts_ms": [recovery.unknown_ms, *recovery.parts, recovery.total_ms],
                "lost_steps": recovery.lost_steps_text,
            }
            for recovery in timeline.recoveries[-_RECOVERIES:]
        ],
    }


def _spans(spans: Sequence[Span], pixel_ms: float) -> list[tuple[int, int, int]]:
    return [(_CODES[Doing(span.doing)], span.begin_ms, span.end_ms) for span in visible(spans, pixel_ms)]


def _checkpoints(stored: Stored) -> list[Mapping[str, Any]]:
    """The newest steps that ranks hold, newest first."""
    held = [
        record
        for record in stored.checkpoints
        if record.run == stored.job.run and record.state is not CheckpointState.RETIRED
    ]
    steps = sorted({record.step for record in held})[-_STEPS:]
    rows = checkpoint_rows((record for record in held if record.step in steps), stored.copies)
    found: list[Mapping[str, Any]] = []
    for step in reversed(steps):
        of_step = [row for row in rows if row["step"] == step]
        found.append(
            {
                "step": step,
                "state": ", ".join(sorted({row["state"] for row in of_step})),
                "ranks": len({row["rank"] for row in of_step}),
                "of": stored.job.worker_count,
                "tiers": sorted({row["tier"] for row in of_step}),
                "copies": sorted({str(name) for row in of_step for name in row["copies"]}),
            }
        )
    return found
