"""The timeline as a page: self-contained HTML with one drawing, no script and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple, TypeVar

from recovery.clock import instant
from recovery.report.node_spans import Doing, Span, by_slot, visible
from recovery.report.recoveries import PARTS, Recovery
from recovery.report.timeline import Timeline

_WIDTH, _LEFT, _ROW, _TOP = 1200, 130, 22, 46
"""Pixels: the drawing's width, where time begins, the height of a node's row, and of what stands above the first."""
COLOURS = {
    Doing.RUNNING: ("#3a9d5d", "training"),
    Doing.REDOING: ("#d6a11d", "doing steps again"),
    Doing.STARTING: ("#4a7fc1", "forms the world, loads"),
    Doing.WAITING: ("#b9c2cf", "waits for the others"),
    Doing.STANDING_BY: ("#7fb7b2", "stands by"),
    Doing.REFUSED: ("#a86bc2", "refused (rejoin window)"),
    Doing.STARTING_AGAIN: ("#8fb4dd", "starts its program again"),
    Doing.LOST: ("#c94a4a", "lost"),
    Doing.UNKNOWN: ("#5a4b5e", "unknown: nobody recorded what it did"),
}
"""Colour and meaning of what a node does."""
Mark = TypeVar("Mark", bound=tuple[int, ...])
_TICKS = 8
_FIGURES = ("unknown", *PARTS, "in all", "steps lost")
"""Of a recovery, in the order of its row."""
_LABEL = 190
"""Width of a generation's label."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1240px; padding: 0 1rem; color: #1c2430; background: #fff; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
svg { width: 100%; height: auto; display: block; } text { font: 12px system-ui, sans-serif; fill: #1c2430; }
.quiet, text.quiet { color: #5b6675; fill: #5b6675; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #e3e7ee; vertical-align: top; } td.n, th.n { text-align: right; }
.facts { display: flex; flex-wrap: wrap; gap: 2rem; margin: 1rem 0; } .facts b { display: block; font-size: 1.5rem; }
.key { display: inline-block; width: .9em; height: .9em; border-radius: 2px; margin: 0 .35em 0 1em; vertical-align: -.08em; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #dde3ec; } text { fill: #dde3ec; } th, td { border-color: #2b3340; } .quiet, text.quiet { color: #93a0b3; fill: #93a0b3; } }
"""


class Scale(NamedTuple):
    """Where a time lies on a drawing."""

    begin_ms: int
    span_ms: int
    left: int
    width: int

    @classmethod
    def of(cls, timeline: Timeline, *, left: int, right: int) -> Scale:
        """The whole run between two pixels."""
        return cls(timeline.begin_ms, max(1, timeline.end_ms - timeline.begin_ms), left, right - left)

    def __call__(self, at_ms: int) -> int:
        """Pixels from the left."""
        return self.left + self.width * (at_ms - self.begin_ms) // self.span_ms

    @property
    def pixel_ms(self) -> float:
        """How long a pixel is."""
        return self.span_ms / self.width

    def apart(self, marks: Iterable[Mark], *, least: int = 8) -> Iterator[Mark]:
        """Leave out marks (each begins with its time) that would come closer than `least` pixels to the one before."""
        free_from = 0
        for mark in marks:
            if self(mark[0]) >= free_from:
                yield mark
                free_from = self(mark[0]) + least


def page(timeline: Timeline, *, job: str, state: str) -> str:
    """The whole page."""
    wall_s = (timeline.end_ms - timeline.begin_ms) / 1000
    facts = [
        (timeline.goodput_text, "of the time was useful (goodput)"),
        (f"{wall_s:,.1f} s", "from the first event to the last record"),
        (f"{timeline.unknown_ms / 1000:,.1f} s", "unknown: not counted as useful"),
        *(
            [(f"{timeline.paused_ms / 1000:,.1f} s", "stopped on purpose: not counted")]
            if timeline.paused_ms
            else []
        ),
        (str(timeline.failures), "recoveries"),
        *([(str(timeline.resumptions), "stops, and new starts")] if timeline.resumptions else []),
        (timeline.lost_steps_text, timeline.done_again_text),
        (str(len(timeline.commits)), "common checkpoints"),
    ]
    shown = "".join(f"<div><b>{escape(value)}</b>{escape(meaning)}</div>" for value, meaning in facts)
    keys = "".join(
        f'<span class="key" style="background:{colour}"></span>{escape(meaning)}'
        for colour, meaning in COLOURS.values()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Job {escape(job[:8])}, run {timeline.run}</title><style>{_STYLE}</style></head><body>
<h1>Job {escape(job)}, run {timeline.run}: {escape(state)}</h1>
<p class="quiet">{instant(timeline.begin_ms)} to {instant(timeline.end_ms)}</p>
<div class="facts">{shown}</div>
<p>{keys}</p>
{_drawing(timeline)}
{_recoveries(timeline)}
</body></html>
"""


def _drawing(timeline: Timeline) -> str:
    rows = by_slot(timeline.spans)
    height = _TOP + _ROW * (len(rows) + 1) + 40
    x = Scale.of(timeline, left=_LEFT, right=_WIDTH - 10)
    bottom = height - 32
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="one row per slot over time">']
    for tick in range(_TICKS + 1):
        at_ms = timeline.begin_ms + x.span_ms * tick // _TICKS
        parts.append(
            f'<line x1="{x(at_ms)}" x2="{x(at_ms)}" y1="{_TOP}" y2="{bottom}" stroke="#8894a5" stroke-opacity=".25"/>'
        )
        anchor = "end" if tick == _TICKS else "middle"
        seconds = f"{x.span_ms * tick / _TICKS / 1000:.1f} s"
        parts.append(
            f'<text class="quiet" x="{x(at_ms)}" y="{bottom + 18}" text-anchor="{anchor}">{seconds}</text>'
        )
    for number, (node, spans) in enumerate(rows.items()):
        y = _TOP + number * _ROW
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(node[:16])}</text>')
        parts += _node_row(node, spans, x, y)
    parts += _scheduler_row(timeline, x, _TOP + len(rows) * _ROW)
    parts += _marks(timeline, x, bottom)
    return "\n".join([*parts, "</svg>"])


def _node_row(node: str, spans: Sequence[Span], x: Scale, y: int) -> Iterator[str]:
    """One path per colour: a job of 1,000 nodes has more spans than a browser likes elements."""
    drawn: dict[Doing, list[str]] = {}
    in_all_ms: dict[Doing, int] = {}
    for span in spans:
        in_all_ms[span.doing] = in_all_ms.get(span.doing, 0) + span.end_ms - span.begin_ms
    for span in visible(spans, x.pixel_ms):
        left = x(span.begin_ms)
        width = max(1, x(span.end_ms) - left)
        drawn.setdefault(span.doing, []).append(f"M{left} {y + 2}h{width}v{_ROW - 5}h-{width}z")
    for doing, shapes in drawn.items():
        colour, meaning = COLOURS[doing]
        title = f"{node}: {meaning}, {in_all_ms[doing] / 1000:.2f} s in all"
        yield f'<path d="{"".join(shapes)}" fill="{colour}"><title>{escape(title)}</title></path>'


def _scheduler_row(timeline: Timeline, x: Scale, y: int) -> Iterator[str]:
    yield f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">scheduler</text>'
    yield (
        f'<rect x="{x(timeline.begin_ms)}" y="{y + 6}" width="{x(timeline.end_ms) - x(timeline.begin_ms)}" height="{_ROW - 13}" fill="#7b8796"/>'
    )
    for begin_ms, end_ms in timeline.outages:
        width = max(2, x(end_ms) - x(begin_ms))
        title = f"scheduler away for at most {(end_ms - begin_ms) / 1000:.1f} s"
        yield (
            f'<rect x="{x(begin_ms)}" y="{y + 2}" width="{width}" height="{_ROW - 5}" fill="#c94a4a"><title>{title}</title></rect>'
        )


def _marks(timeline: Timeline, x: Scale, bottom: int) -> Iterator[str]:
    for at_ms, generation, step in x.apart(timeline.plans):
        title = f"generation {generation} begins at step {step}"
        yield f'<line x1="{x(at_ms)}" x2="{x(at_ms)}" y1="26" y2="{bottom}" stroke="#4a7fc1" stroke-dasharray="3 3"><title>{title}</title></line>'
    # A plan whose label finds no space has its line's title.
    for at_ms, generation, step in x.apart(timeline.plans, least=_LABEL):
        yield f'<text x="{x(at_ms) + 3}" y="20">generation {generation}: step {step}</text>'
    for at_ms, step in x.apart(timeline.commits):
        yield (
            f'<path d="M{x(at_ms)} {_TOP - 4} l-4 -8 h8 z" fill="#3a9d5d"><title>step {step} is held by all ranks</title></path>'
        )


def _recoveries(timeline: Timeline) -> str:
    if not timeline.recoveries:
        return "<h2>Recoveries</h2><p>Nothing failed.</p>"
    head = "<th>at</th><th>why</th>" + "".join(f'<th class="n">{name}</th>' for name in _FIGURES)
    return f"<h2>Recoveries</h2><table><tr>{head}</tr>{''.join(_recovery_row(timeline, recovery) for recovery in timeline.recoveries)}</table>"


def _recovery_row(timeline: Timeline, recovery: Recovery) -> str:
    cells = "".join(
        f'<td class="n">{time_ms / 1000:,.2f} s</td>'
        for time_ms in (recovery.unknown_ms, *recovery.parts, recovery.total_ms)
    )
    at_s = (recovery.at_ms - timeline.begin_ms) / 1000
    return f'<tr><td>{at_s:,.1f} s</td><td>{escape(recovery.because_text)}</td>{cells}<td class="n">{recovery.lost_steps_text}</td></tr>'
