"""The timeline as a PNG, for where a page is no help: a chat, a ticket. Needs Pillow (`pip install recovery-engine[png]`)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from recovery.errors import UsageError
from recovery.file_systems import write_new
from recovery.report.node_spans import Doing, by_slot, visible
from recovery.report.timeline import Timeline
from recovery.report.timeline_page import COLOURS, Scale

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

_WIDTH, _LEFT, _ROW, _TOP = 1600, 170, 28, 112
_LABEL = 56
"""Width of a generation's number."""
_KEY = 38
"""Pixels of the legend's colour, and of what parts it from its neighbours."""
_INK, _QUIET = "#1c2430", "#5b6675"


def write(timeline: Timeline, path: Path, *, title: str) -> None:
    """Draw it into a new file.

    Raises:
        UsageError: Pillow is not installed.
        FileExistsError: the file is there already.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            field="--png", reason="needs Pillow, which is not installed", next_step="pip install pillow."
        ) from error
    rows = by_slot(timeline.spans)
    height = _TOP + _ROW * len(rows) + 50
    image = Image.new("RGB", (_WIDTH, height), "white")
    draw = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(20), ImageFont.load_default(14)
    draw.text((12, 10), title, fill=_INK, font=large)
    unknown = f", {timeline.unknown_ms / 1000:.0f} s unknown" if timeline.unknown_ms else ""
    facts = f"goodput {timeline.goodput_text}, {timeline.failures} recoveries{unknown}"
    draw.text((12, 36), facts, fill=_QUIET, font=small)
    _legend(draw, small)
    x = Scale.of(timeline, left=_LEFT, right=_WIDTH - 20)
    for number, (node, spans) in enumerate(rows.items()):
        y = _TOP + number * _ROW
        draw.text((12, y + 4), node[:18], fill=_INK, font=small)
        for span in visible(spans, x.pixel_ms):
            right = max(x(span.begin_ms) + 1, x(span.end_ms))
            draw.rectangle((x(span.begin_ms), y + 3, right, y + _ROW - 4), fill=COLOURS[span.doing][0])
    bottom = _TOP + _ROW * len(rows)
    for at_ms, *_ in x.apart(timeline.plans):
        draw.line((x(at_ms), _TOP - 6, x(at_ms), bottom), fill="#4a7fc1")
    for at_ms, generation, _ in x.apart(timeline.plans, least=_LABEL):
        draw.text((x(at_ms) + 3, _TOP - 22), f"g{generation}", fill=_QUIET, font=small)
    for tick in range(9):
        at_ms = timeline.begin_ms + x.span_ms * tick // 8
        draw.text(
            (min(x(at_ms), _WIDTH - 60), bottom + 12),
            f"{x.span_ms * tick / 8000:.1f} s",
            fill=_QUIET,
            font=small,
        )
    drawn = io.BytesIO()
    image.save(drawn, "PNG")
    write_new(path, drawn.getvalue())


def _legend(draw: ImageDraw, font: FreeTypeFont | ImageFont) -> None:
    left = 12.0
    for doing in Doing:
        colour, meaning = COLOURS[doing]
        draw.rectangle((left, 62, left + 12, 74), fill=colour)
        draw.text((left + 18, 60), meaning, fill=_QUIET, font=font)
        left += _KEY + draw.textlength(meaning, font)
