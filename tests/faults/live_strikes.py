"""What is to happen to a live job, at which event of which step (see live_events.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from typing_extensions import override

SAVE_STEPS = 7
KILL, HOLD = "kill", "hold"
"""HOLD: wait there until the generation is over, as one does whose step is slow."""


@dataclass(frozen=True)
class Strike:
    """Of one rank, once."""

    rank: int
    event: str
    step: int = 0
    """0: whichever."""
    what: str = KILL
    behind: str = ""
    """An event of the same step that every other rank has to have noted first; empty: none."""
    follows: bool = False
    """It waits for a generation later than that of the strike before it."""

    def is_at(self, rank: int, event: str, step: int) -> bool:
        """Is it meant for this moment?"""
        return (self.rank, self.event) == (rank, event) and self.step in (0, step)

    @override
    def __str__(self) -> str:
        return f"{self.what} rank {self.rank} at {self.event}" + (
            f" of step {self.step}" if self.step else ""
        )


def read_strikes(text: str) -> list[Strike]:
    """Of the variable JOB_STRIKES."""
    return [Strike(**one) for one in json.loads(text)]


def write_strikes(strikes: Iterable[Strike]) -> str:
    """For the variable JOB_STRIKES."""
    return json.dumps([asdict(strike) for strike in strikes])


def struck_in(directory: Path, number: int) -> int | None:
    """The generation in which a strike has fallen; None: it has not."""
    try:
        content = (directory / f"struck_{number}").read_text()
    except FileNotFoundError:
        return None
    return int(json.loads(content)[0]) if content else None
