"""The workers' logs on the console while one waits: each line behind its rank."""

from __future__ import annotations

import asyncio
from pathlib import Path

from recovery.launch import console

_POLL_S = 0.2


class Tail:
    """One log, from its end as it was at the beginning."""

    def __init__(self, path: Path, label: str, *, number: int) -> None:
        """Begin behind what is there.

        Args:
            path: of the log.
            label: the rank; the place on this host while only the scheduler knows the rank.
            number: chooses the colour.
        """
        self._path, self._label, self._number = path, label, number
        self._offset = path.stat().st_size if path.exists() else 0

    def show(self, *, to_the_end: bool = False) -> None:
        """Print the lines that are new; a last one without its end only when nothing can follow."""
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._offset)
            content = log.read()
        whole = content if to_the_end else content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            console.show_line(self._label, line, number=self._number)


async def follow(tails: list[Tail]) -> None:
    """Until cancelled; shows the rest then."""
    try:
        while True:
            for tail in tails:
                tail.show()
            await asyncio.sleep(_POLL_S)
    finally:
        for tail in tails:
            tail.show(to_the_end=True)
