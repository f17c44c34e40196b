"""The story as a page: self-contained HTML with one drawing, no script and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape

from recovery.report.lanes import Doing
from recovery.report.story import Recovery, Story
from recovery.report.tables import instant

_WIDTH, _LEFT, _LANE, _TOP = 1200, 130, 22, 46
COLOURS = {
    Doing.RUNNING: ("#3a9d5d", "training"),
    Doing.REDOING: ("#d6a11d", "doing steps again"),
    Doing.STARTING: ("#4a7fc1", "forms the world, loads"),
    Doing.WAITING: ("#b9c2cf", "waits for the others"),
    Doing.REFUSED: ("#a86bc2", "refused (rejoin window)"),
    Doing.LOST: ("#c94a4a", "lost"),
}
"""Colour and meaning of what a node does."""
_Placed = Callable[[int], float]
"""From a time to its place on the drawing."""
_TICKS = 8
_LABEL = 150.0
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


def page(story: Story, *, job: str, state: str) -> str:
    """The whole page.

    Args:
        story: of a run.
        job: its id.
        state: of the job.
    """
    wall_s = (story.end_ms - story.begin_ms) / 1000
    lost = sum(one.lost_steps for one in story.recoveries)
    facts = [
        (f"{story.goodput:.1%}", "of the time was useful (goodput)"),
        (f"{wall_s:,.1f} s", "from the first event to the last"),
        (str(len(story.recoveries)), "recoveries"),
        (str(lost), "steps done again"),
        (str(len(story.commits)), "common checkpoints"),
    ]
    shown = "".join(f"<div><b>{escape(value)}</b>{escape(meaning)}</div>" for value, meaning in facts)
    keys = "".join(
        f'<span class="key" style="background:{colour}"></span>{escape(meaning)}'
        for colour, meaning in COLOURS.values()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Job {escape(job[:8])}, run {story.run}</title><style>{_STYLE}</style></head><body>
<h1>Job {escape(job)}, run {story.run}: {escape(state)}</h1>
<p class="quiet">{instant(story.begin_ms)} to {instant(story.end_ms)}</p>
<div class="facts">{shown}</div>
<p>{keys}</p>
{_drawing(story)}
{_table(story)}
</body></html>
"""


def _drawing(story: Story) -> str:
    height = _TOP + _LANE * (len(story.lanes) + 1) + 40
    span_ms = max(1, story.end_ms - story.begin_ms)

    def x(at_ms: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 10) * (at_ms - story.begin_ms) / span_ms, 2)

    bottom = height - 32
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="one lane per rank over time">']
    for tick in range(_TICKS + 1):
        at_ms = story.begin_ms + span_ms * tick // _TICKS
        parts.append(
            f'<line x1="{x(at_ms)}" x2="{x(at_ms)}" y1="{_TOP}" y2="{bottom}" stroke="#8894a5" stroke-opacity=".25"/>'
        )
        anchor = "end" if tick == _TICKS else "middle"
        seconds = f"{span_ms * tick / _TICKS / 1000:.1f} s"
        parts.append(
            f'<text class="quiet" x="{x(at_ms)}" y="{bottom + 18}" text-anchor="{anchor}">{seconds}</text>'
        )
    for number, (node, spans) in enumerate(story.lanes.items()):
        y = _TOP + number * _LANE
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(node[:16])}</text>')
        for span in spans:
            colour, meaning = COLOURS[span.doing]
            width = max(0.6, x(span.end_ms) - x(span.begin_ms))
            title = f"{node}: {meaning}, {(span.end_ms - span.begin_ms) / 1000:.2f} s"
            parts.append(
                f'<rect x="{x(span.begin_ms)}" y="{y + 2}" width="{width:.2f}" height="{_LANE - 5}" fill="{colour}"><title>{escape(title)}</title></rect>'
            )
    parts += _scheduler_lane(story, x, _TOP + len(story.lanes) * _LANE)
    parts += _marks(story, x, bottom)
    return "\n".join([*parts, "</svg>"])


def _scheduler_lane(story: Story, x: _Placed, y: int) -> Iterator[str]:
    yield f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">scheduler</text>'
    yield (
        f'<rect x="{x(story.begin_ms)}" y="{y + 6}" width="{x(story.end_ms) - x(story.begin_ms):.2f}" height="{_LANE - 13}" fill="#7b8796"/>'
    )
    for begin_ms, end_ms in story.outages:
        width = max(2.0, x(end_ms) - x(begin_ms))
        title = f"scheduler away for at most {(end_ms - begin_ms) / 1000:.1f} s"
        yield (
            f'<rect x="{x(begin_ms)}" y="{y + 2}" width="{width:.2f}" height="{_LANE - 5}" fill="#c94a4a"><title>{title}</title></rect>'
        )


def _marks(story: Story, x: _Placed, bottom: int) -> Iterator[str]:
    free_from = 0.0
    for at_ms, generation, step in story.plans:
        title = f"generation {generation} begins at step {step}"
        yield f'<line x1="{x(at_ms)}" x2="{x(at_ms)}" y1="26" y2="{bottom}" stroke="#4a7fc1" stroke-dasharray="3 3"><title>{title}</title></line>'
        if x(at_ms) >= free_from:  # a label that would cover the one before is left to the line's title
            yield f'<text x="{x(at_ms) + 3}" y="20">generation {generation}: step {step}</text>'
            free_from = x(at_ms) + _LABEL
    for at_ms, step in story.commits:
        yield (
            f'<path d="M{x(at_ms)} {_TOP - 4} l-4 -8 h8 z" fill="#3a9d5d"><title>step {step} is held by all ranks</title></path>'
        )


def _table(story: Story) -> str:
    if not story.recoveries:
        return "<h2>Recoveries</h2><p>Nothing failed.</p>"
    head = "".join(
        f"<th{kind}>{name}</th>"
        for name, kind in (
            ("at", ""),
            ("why", ""),
            *(
                (name, ' class="n"')
                for name in ("notice", "window", "start", "rendezvous", "first step", "in all", "steps lost")
            ),
        )
    )
    return f"<h2>Recoveries</h2><table><tr>{head}</tr>{''.join(_row(story, one) for one in story.recoveries)}</table>"


def _row(story: Story, one: Recovery) -> str:
    times = (one.notice_ms, one.window_ms, one.start_ms, one.rendezvous_ms, one.first_step_ms, one.total_ms)
    cells = "".join(f'<td class="n">{time_ms / 1000:,.2f} s</td>' for time_ms in times)
    at_s = (one.at_ms - story.begin_ms) / 1000
    return f'<tr><td>{at_s:,.1f} s</td><td>{escape(one.because)}</td>{cells}<td class="n">{one.lost_steps}</td></tr>'
