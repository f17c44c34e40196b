"""Where each plan of a live job has to go, worked out from what its processes noted and not from what the engine says of itself.

The rules (docs/design/live_rollback.md): a process is whole at a step from its boundary until an optimizer begins the next one; what it takes
from another rank counts when all have agreed; of those that live the newest whole step wins, if no common checkpoint is as new. Where the state is cut
into parts, some rank must be whole at the step with each part.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.harness import Cluster
from tests.faults.live_strikes import KILL


class Note(NamedTuple):
    """One line of a trace."""

    rank: int
    generation: int
    pid: int
    event: str
    step: int


@dataclass
class Memory:
    """What one process holds."""

    whole: int | None = None
    """Step; None: none."""
    finished: int = 0
    """The newest step that it has ended, or taken."""

    def hear(self, note: Note, plan: int, *, is_live: bool) -> None:
        """What it has done next.

        Args:
            note: of that.
            plan: step that the plan of its generation goes to.
            is_live: it goes to a rank's memory.
        """
        event = note.event
        if (
            (event == "entered" and not is_live)
            or (event == "transfer begins" and self.whole != plan)
            or (event.startswith("optimizer") and event.endswith("steps"))
        ):
            self.whole = None
        elif event == "boundary ends":
            self.whole = self.finished = note.step
        elif event in ("agreement ends", "load ends"):
            self.whole = self.finished = plan


class Expected(NamedTuple):
    """Of one plan."""

    generation: int
    live: int | None
    """The newest step that is whole in a survivor's memory."""
    finished: int
    """The newest step that any survivor had ended."""
    common: tuple[int, int]
    """The newest common checkpoint is one of these or lies between: at a kill in a save nobody knows."""

    def fault(self, step: int, reason: str) -> str:
        """Why a plan is not what it must be; empty: it is."""
        is_live = goes_to_memory(reason)
        least, most = self.common
        if self.live is not None and self.live > most:
            return "" if is_live and step == self.live else f"not the memory of step {self.live}"
        if is_live:
            right = self.live is not None and step == self.live > least
            return "" if right else f"a memory, where {self.live} is the newest whole one"
        if not max(least, self.live or 0) <= step <= most:
            return f"not a checkpoint of steps {least} to {most}"
        return "" if "no live rollback: " in reason else "it does not say why it goes to no memory"


def goes_to_memory(reason: str) -> bool:
    """Does a plan of this reason go to a rank's memory, or to those of several?"""
    return "in its memory" in reason or "in their memories" in reason


class Plan(NamedTuple):
    """One that was made after an interrupt, and what was expected of it."""

    expected: Expected
    step: int
    reason: str

    @property
    def fault(self) -> str:
        """Empty: it is right."""
        return self.expected.fault(self.step, self.reason)

    @property
    def lost(self) -> int:
        """Steps that a survivor had ended and that are done again."""
        return max(0, self.expected.finished - self.step)


def notes(directory: Path) -> list[Note]:
    """All of a job, each process's in their order."""
    return [Note(**line) for path in sorted(directory.glob("trace_*.jsonl")) for line in checker.lines(path)]


def plans(cluster: Cluster, shards: int = 1) -> list[Plan]:
    """All but the first.

    Args:
        cluster: of the job.
        shards: parts of the state; rank r holds part r modulo this.
    """
    found, noted = notes(cluster.directory), cluster.events(EventKind.PLAN_MADE)
    made = {
        int(stored.event.generation): (stored.event.step or 0, stored.event.reason)
        for stored in noted
        if stored.event.generation is not None
    }
    dead = _dead(cluster.directory)
    return [
        Plan(_expected(found, made, dead, generation, shards), *made[generation])
        for generation in sorted(made)
        if generation > 1
    ]


def _dead(directory: Path) -> dict[int, int]:
    """By process: the generation in which it was killed."""
    struck = [json.loads(path.read_text()) for path in directory.glob("struck_*")]
    return {pid: generation for generation, pid, what in struck if what == KILL}


def _expected(
    found: list[Note],
    made: dict[int, tuple[int, str]],
    dead: dict[int, int],
    generation: int,
    shards: int,
) -> Expected:
    memories: dict[int, Memory] = {}
    parts = {note.pid: note.rank % shards for note in found}
    for note in found:
        if note.generation >= generation or dead.get(note.pid, generation) < generation:
            continue
        step, reason = made[note.generation]
        memories.setdefault(note.pid, Memory()).hear(note, step, is_live=goes_to_memory(reason))
    with_part: dict[int, set[int]] = {}
    for pid, memory in memories.items():
        if memory.whole is not None:
            with_part.setdefault(memory.whole, set()).add(parts[pid])
    wholes = [step for step, found_parts in with_part.items() if len(found_parts) == shards]
    return Expected(
        generation,
        live=max(wholes, default=None),
        finished=max((memory.finished for memory in memories.values()), default=0),
        common=(_saved(found, generation, "save is on disk"), _saved(found, generation, "save begins")),
    )


def _saved(found: list[Note], generation: int, event: str) -> int:
    """The newest step of which every rank has noted this before a generation."""
    by_rank: dict[int, set[int]] = {note.rank: set() for note in found}
    for note in found:
        if note.event == event and note.generation < generation:
            by_rank[note.rank].add(note.step)
    return max(set.intersection(*by_rank.values()), default=0)
