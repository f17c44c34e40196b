"""One line at the bottom of a terminal while one waits: how far training is, or what a recovery waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text
from typing_extensions import override

from recovery import clock, job_line
from recovery.launch import console
from recovery.transport import inspection_client
from recovery.transport.access import Access

_POLL_MS = 1_000
_POLL_WAITING_S = 0.2
"""A recovery takes less than a second where a worker is forked."""
_POLL_WAITING_MS = round(_POLL_WAITING_S * 1000)
_ERASED = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class BottomLine(RenderHook):
    """Drawn again below each line that is printed. Nothing is drawn while the terminal takes nothing: it would only wait before lines that count."""

    def __init__(self) -> None:
        """Empty."""
        self._text = Text()

    @override
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_ERASED, *renderables, self._text]

    def draw(self, text: Text) -> None:
        """Show this from now on.

        Raises:
            OSError: the terminal is gone.
        """
        text.end = ""
        self._text = text
        if not console.output.is_behind:
            console.console.print(Control())


def is_wanted() -> bool:
    """Is there a terminal on which a line can be erased? FORCE_COLOR makes no terminal of a pipe."""
    return console.output.isatty() and not console.console.is_dumb_terminal


@contextlib.contextmanager
def shown() -> Iterator[BottomLine]:
    """Have a line below all others within this block."""
    line = BottomLine()
    console.console.push_render_hook(line)
    console.share_terminal(shared=True)
    try:
        yield line
    finally:
        console.share_terminal(shared=False)
        console.console.pop_render_hook()
        with contextlib.suppress(OSError):
            console.console.print(_ERASED, end="")


def text_of(view: Mapping[str, Any], parts: list[job_line.Part], *, width: int, ascii_only: bool) -> Text:
    """The line as it is drawn."""
    waits = job_line.is_waiting(view)
    if not waits:
        parts = job_line.with_bar(parts, job_line.training_of(view), ascii_only=ascii_only)
    line = job_line.fit(parts, width)
    text = Text(line.encode("ascii", "replace").decode() if ascii_only else line)
    if waits:
        text.stylize("yellow")
    elif not line[0].isalnum():
        text.stylize("green", 0, job_line.BAR)
    return text


async def show(
    host: str,
    port: int,
    access: Access,
    starts: Callable[[], Mapping[str, job_line.Start]],
    *,
    tells_steps: bool = True,
) -> None:
    """Keep the line up to date until cancelled. Where rank 0 draws a bar of its own, that is shown in its place while the job trains.

    Args:
        host: of the scheduler.
        port: likewise.
        access: likewise.
        starts: gives the processes of this host, as of `job_line.waits_for`.
        tells_steps: False: the script knows nothing of recovery, and tells nobody how far it is.
    """
    pace, silent_since_ms = job_line.Pace(), 0
    with shown() as line:
        while True:
            width, now_ms = max(1, console.console.width - 1), clock.monotonic_ms()
            try:
                view = await inspection_client.ask(host, port, "/status", access=access)
            except inspection_client.NoAnswerError as error:
                silent_since_ms = silent_since_ms or now_ms
                lasted = job_line.duration((clock.monotonic_ms() - silent_since_ms) / 1000)
                said = [job_line.Part(f"waiting for the scheduler {lasted}", 1), job_line.Part(str(error), 0)]
                line.draw(Text(job_line.fit(said, width), style="yellow"))
                await asyncio.sleep(_POLL_WAITING_S)
                continue
            silent_since_ms, view = 0, {**view, "tells_steps": tells_steps}
            parts = job_line.parts_of(view, pace, clock.monotonic_ms(), starts())
            ascii_only = not console.console.encoding.startswith("utf")
            bar = "" if job_line.is_waiting(view) else console.bar_of_rank_0()
            own = text_of(view, parts, width=width, ascii_only=ascii_only)
            line.draw(Text(job_line.fit([job_line.Part(bar, 0)], width)) if bar else own)
            until_ms = now_ms + (_POLL_WAITING_MS if job_line.is_waiting(view) else _POLL_MS)
            await _pause(until_ms, starts)


async def _pause(until_ms: int, starts: Callable[[], Mapping[str, job_line.Start]]) -> None:
    """Until then, or until a process of this host has ended or begun: then there is something to see at once."""
    while (now_ms := clock.monotonic_ms()) < until_ms:
        await asyncio.sleep(_POLL_WAITING_S)
        since_ms = clock.monotonic_ms() - now_ms
        if any(start.for_ms <= since_ms for start in starts().values()):
            return
