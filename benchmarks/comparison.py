"""The systems beside each other in one run: in turn, so that what else the machine does meets all of them."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass, field

from killed_job import job_of
from parts import medians, parts_of
from processes import PATIENCE_S, GoneError, Processes, started
from rank_log import Recovery
from rows import Row, median, row
from systems import HERE, LOG, System

KILLS_PER_JOB = 4
"""A job is made for so many kills, then the next system has its turn. At four workers no rank is killed twice: the second end of one
process within ten seconds of its start would make its launcher wait a second."""
FRESH_PER_TURN, FORKS_PER_TURN = 2, 3
FRESH, FORK = "floor: fresh process, same imports", "floor: bare fork"


@dataclass
class Cell:
    """One system at one number of workers."""

    name: str
    workers: int
    recoveries: list[Recovery] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    starts_ms: list[float] = field(default_factory=list)
    floor_ms: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    failed: int = 0

    def as_row(self) -> Row:
        """What is printed: the keys of every row, and what only a recovery has."""
        times = self.floor_ms or [one.took_ms for one in self.recoveries]
        lost = [one.steps_lost for one in self.recoveries]
        return {
            **row(self.name, self.workers, times, lost, self.failed),
            "parts_ms": medians(self.parts) if self.parts else None,
            "start_ms": median(self.starts_ms),
            "starts": len(self.starts_ms),
            "load": median(self.loads),
        }


class Comparison:
    """All cells of one run.

    Args:
        systems: those that can be had here.
        workers: numbers of workers.
        kills: recoveries per cell.
    """

    def __init__(self, systems: list[System], workers: list[int], kills: int) -> None:
        self._systems, self._workers, self._kills = systems, workers, kills
        self.cells: dict[tuple[str, int], Cell] = {}

    def measure(self) -> None:
        """Turn by turn, the systems in another order in each."""
        turns = math.ceil(self._kills / KILLS_PER_JOB)
        for turn in range(turns):
            kills = min(KILLS_PER_JOB, self._kills - turn * KILLS_PER_JOB)
            first = turn % max(1, len(self._systems))
            self._floors()
            for system in self._systems[first:] + self._systems[:first]:
                for workers in self._workers:
                    self._one_job(system, workers, kills, seed=turn)
                # Its start alone: what more workers add to it.
                self._one_job(system, 1, 0, seed=turn)

    def _cell(self, name: str, workers: int) -> Cell:
        cell = self.cells.setdefault((name, workers), Cell(name, workers))
        cell.loads.append(os.getloadavg()[0])
        return cell

    def _one_job(self, system: System, workers: int, kills: int, seed: int) -> None:
        cell = self._cell(system.name, workers)
        begun = time.monotonic()
        with job_of(system, workers, seed=seed) as job:
            try:
                cell.starts_ms.append(job.begin())
                for _ in range(kills):
                    cell.recoveries.append(job.kill_one())
            except GoneError:
                cell.failed += 1
                print(job.tails(), file=sys.stderr)
            cell.parts += parts_of(job, has_events=system.has_events)
        took = [round(one.took_ms) for one in job.recoveries]
        print(
            f"{system.name}, {workers} workers: start {cell.starts_ms[-1:]} ms, kills {took} ms, {time.monotonic() - begun:.0f} s",
            file=sys.stderr,
        )

    def _floors(self) -> None:
        fresh, fork = self._cell(FRESH, 1), self._cell(FORK, 1)
        # The first one of the run only warms the disk's cache.
        skipped = 0 if fresh.floor_ms else 1
        with started() as processes:
            for number in range(skipped + FRESH_PER_TURN):
                begun_ms = time.time() * 1000
                [line] = floor_lines(processes, "fresh")
                if number >= skipped:
                    fresh.floor_ms.append(line["wall_ms"] - begun_ms)
            for line in floor_lines(processes, "fork", str(FORKS_PER_TURN)):
                fork.floor_ms.append(line["wall_ms"] - line["begun_ms"])


def floor_lines(processes: Processes, *words: str) -> list[dict[str, float]]:
    """Run a program of the floors to its end; gives what it told."""
    log = processes.place / LOG
    log.unlink(missing_ok=True)
    processes.start("floor", [str(HERE / "program_floor.py"), *words])
    processes.last["floor"].wait(PATIENCE_S)
    return [json.loads(text) for text in log.read_text().splitlines()]
