"""One line that stays below everything else that is printed on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text
from typing_extensions import override

from recovery.launch import console

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
