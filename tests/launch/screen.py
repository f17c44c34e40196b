"""A terminal's screen, as far as the launcher uses one: it fails on whatever else it is sent."""

from __future__ import annotations

import re

_PIECE = re.compile(rb"\r\n|\r|\n|\x1b\[[0-9;]*m|\x1b\[2K|\x1b\[\?25[hl]|[^\x00-\x1f\x7f]+")


class Screen:
    """Endless, and wide enough for every line."""

    def __init__(self) -> None:
        self._rows = [""]
        self._column = 0

    def feed(self, sent: bytes) -> None:
        """Take what a program has written."""
        at = 0
        while at < len(sent):
            found = _PIECE.match(sent, at)
            assert found, f"it is steered by {sent[at : at + 12]!r}"
            at = found.end()
            self._take(found.group())

    def lines(self) -> list[str]:
        """What is seen, without the empty lines at the end."""
        return "\n".join(row.rstrip() for row in self._rows).rstrip("\n").split("\n")

    def _take(self, piece: bytes) -> None:
        if piece == b"\r":
            self._column = 0
        elif piece == b"\x1b[2K":
            self._rows[-1] = ""
        elif piece in (b"\n", b"\r\n"):
            self._rows.append("")
            self._column = 0
        elif not piece.startswith(b"\x1b"):
            row, text = self._rows[-1].ljust(self._column), piece.decode()
            self._rows[-1] = row[: self._column] + text + row[self._column + len(text) :]
            self._column += len(text)
