"""What the ranks of a job have told of themselves, and what a recovery looks like from there: the same for every system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OUT_OF_ORDER_MS = 1000.0


@dataclass(frozen=True)
class Step:
    """A rank has applied a step."""

    rank: int
    number: int
    pid: int
    wall_ms: float


@dataclass(frozen=True)
class Mark:
    """A program has come to a point of its start; see program_common."""

    name: str
    rank: int | None
    pid: int
    wall_ms: float
    born_ms: float | None


@dataclass(frozen=True)
class Recovery:
    """From a kill until every rank has applied one step again."""

    rank: int
    """The one that was killed."""
    killed_ms: float
    done_ms: float
    first_step: int
    steps_lost: int
    """How many of the steps that the killed rank had applied are done again."""

    @property
    def took_ms(self) -> float:
        """How long no step was made by all."""
        return self.done_ms - self.killed_ms


class RankLog:
    """steps.jsonl, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self.steps: list[Step] = []
        self.marks: list[Mark] = []
        self.pids: dict[int, int] = {}
        """Of each rank's newest program."""
        self.reached: dict[int, int] = {}
        """The newest step of each program that has stepped."""
        self._path, self._offset = path, 0

    def look(self) -> None:
        """Read the whole lines that are new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._offset)
            content = log.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            self._take(json.loads(text))

    def _take(self, line: dict[str, Any]) -> None:
        if "mark" in line:
            self.marks.append(
                Mark(line["mark"], line["rank"], line["pid"], line["wall_ms"], line.get("born_ms"))
            )
        else:
            self.steps.append(Step(line["rank"], line["step"], line["pid"], line["wall_ms"]))
            self.pids[line["rank"]] = line["pid"]
            self.reached[line["pid"]] = line["step"]

    def first_of_all(self, workers: int) -> float | None:
        """When every rank had applied a step for the first time; None: not yet."""
        self.look()
        first: dict[int, float] = {}
        for step in self.steps:
            first.setdefault(step.rank, step.wall_ms)
        return max(first.values()) if len(first) == workers else None

    def steps_since(self, since_ms: float) -> int:
        """How many steps every rank that was heard has applied since a moment."""
        self.look()
        counts: dict[int, int] = dict.fromkeys(self.pids, 0)
        for step in self._newest_first(since_ms):
            counts[step.rank] += 1
        return min(counts.values(), default=0)

    def holder(self, rank: int, at_ms: float) -> int | None:
        """The process that had a rank at a moment; None: nobody yet."""
        return next(
            (step.pid for step in self._newest_first(0) if step.rank == rank and step.wall_ms <= at_ms), None
        )

    def _newest_first(self, since_ms: float) -> Iterator[Step]:
        """The steps since a moment; lines of several processes may be a little out of order."""
        for step in reversed(self.steps):
            if step.wall_ms > since_ms:
                yield step
            elif step.wall_ms < since_ms - _OUT_OF_ORDER_MS:
                return

    def recovery(self, rank: int, pid: int, killed_ms: float, workers: int) -> Recovery | None:
        """The recovery from a kill, once every rank has applied one and the same step after it; None: not yet.

        Args:
            rank: the one that was killed.
            pid: its process; what that has applied does not count.
            killed_ms: when.
            workers: number of ranks.
        """
        self.look()
        applied: dict[int, dict[int, float]] = {}
        for step in self._newest_first(killed_ms):
            if step.pid != pid:
                ranks = applied.setdefault(step.number, {})
                ranks[step.rank] = min(step.wall_ms, ranks.get(step.rank, step.wall_ms))
        done = [(max(ranks.values()), number) for number, ranks in applied.items() if len(ranks) == workers]
        if not done:
            return None
        done_ms, number = min(done)
        return Recovery(rank, killed_ms, done_ms, number, max(0, self.reached.get(pid, 0) - number + 1))
