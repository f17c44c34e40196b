"""How long a MindSpore job makes no step after a SIGKILL: this engine, MindSpore 2.10 alone, and the floor below both.

    python benchmarks/mindspore_recover.py [--workers 4] [--kills 10] [--window 12] [--only engine,launcher,upstream,floors]

engine: admission from the admission of the relaunched worker, which waited for --window seconds, as the survivors did.
engine: kill      window 0, relaunched at once: from the kill until all ranks have applied their first step. All ranks run a new
                  program, since MindSpore forms one world in a process: the killed one again, the others by exec.
msrun: spawn, fork, standby
                  the same under `recovery msrun`, in turn: the launcher starts the dead worker again from nothing or from its template, or
                  a process that waits takes the rank. `parts_ms` as in recover.py (the survivors' imports are in `rendezvous`);
                  `imports_of_all_ms`: from the kill until the last rank had made its imports; `start_ms`, `starts`, `load`.
floor: fresh      one process alone, without any world: from its start to its first step.
floor: start      the whole job's first start: from there until all ranks have applied their first step.
upstream          MindSpore's own networking with MS_ENABLE_RECOVERY=1 and MS_RECOVERY_PATH, as its documents said: one worker is
                  killed and relaunched after 3 s. Reported is what came of it, and after how long.

Run it in the environment of MindSpore (make setup-mindspore).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from comparison import Cell
from killed_job import KilledJob, job_of
from one_by_one import cluster, engine, fresh
from parts import parts_of
from processes import GoneError, Processes, StepLog, free_port, started
from rows import Row, median, row
from systems import System, launchers

WORK = Path(__file__).resolve().with_name("mindspore_work.py")
RELAUNCH_AFTER_S = 3.0
KILLS_PER_JOB = 3
"""Then the next way has its turn, so that what else the machine does meets all of them."""


def first_start(workers: int) -> Row:
    """Floor: nothing has failed yet."""
    begun_ms = time.time() * 1000
    with cluster(workers, 0, WORK) as (processes, _):
        steps = StepLog(processes.place / "steps.jsonl")
        number = processes.wait(lambda: steps.round_of_all(workers, after=0), alive="sched")
        done_ms = max(wall for _, wall in steps.first[number].values())
    return row("floor: start", workers, [done_ms - begun_ms], [])


def under_msrun(workers: int, kills: int) -> Iterator[Row]:
    """The launcher's three ways to bring a rank back, in turn. What is measured when it is stopped is still told."""
    systems = launchers((WORK.name, "msrun"))
    cells = {one.name: Cell(one.name, workers) for one in systems}
    imports: dict[str, list[float]] = {one.name: [] for one in systems}
    try:
        for left in range(kills, 0, -KILLS_PER_JOB):
            for system in systems:
                cell = cells[system.name]
                imports[system.name] += _one_job(system, cell, min(KILLS_PER_JOB, left), seed=left)
    finally:
        yield from (
            {**cell.as_row(), "imports_of_all_ms": median(imports[name])} for name, cell in cells.items()
        )


def _one_job(system: System, cell: Cell, kills: int, seed: int) -> list[float]:
    """Kill rank after rank; gives when the last rank had made its imports again."""
    cell.loads.append(os.getloadavg()[0])
    with job_of(system, cell.workers, seed=seed) as job:
        try:
            cell.starts_ms.append(job.begin())
            for _ in range(kills):
                cell.recoveries.append(job.kill_one())
                print(f"{system.name}: {cell.recoveries[-1].took_ms:.0f} ms", file=sys.stderr, flush=True)
        except GoneError:
            cell.failed += 1
            print(job.tails(), file=sys.stderr)
        cell.parts += parts_of(job, has_events=True)
        return imports_of_all(job)


def imports_of_all(job: KilledJob) -> list[float]:
    """From each kill until every process that then had a rank had made its imports, in ms."""
    took: list[float] = []
    for one in job.recoveries:
        pids = {step.pid for step in job.log.steps if one.killed_ms < step.wall_ms <= one.done_ms}
        entered = [mark.wall_ms for mark in job.log.marks if mark.name == "entered" and mark.pid in pids]
        took.append(
            max([when for when in entered if one.killed_ms < when <= one.done_ms], default=one.killed_ms)
            - one.killed_ms
        )
    return took


def upstream(workers: int) -> str:
    """MindSpore alone: one line on what came of a kill."""
    with started(
        MS_WORKER_NUM=str(workers),
        MS_SCHED_HOST="127.0.0.1",
        MS_SCHED_PORT=str(free_port()),
        MS_ENABLE_RECOVERY="1",
        MS_RECOVERY_PATH="recovery",
    ) as processes:
        for name, role in [("sched", "MS_SCHED"), *((str(number), "MS_WORKER") for number in range(workers))]:
            processes.start(name, [str(WORK), "upstream"], MS_ROLE=role, MS_NODE_ID=name)
        steps = StepLog(processes.place / "steps.jsonl")
        processes.wait(lambda: steps.steps_in(1, workers) >= 30, alive="sched")
        processes.last["1"].kill()
        killed = time.monotonic()
        time.sleep(RELAUNCH_AFTER_S)
        processes.start("1", [str(WORK), "upstream"], MS_ROLE="MS_WORKER", MS_NODE_ID="1", BENCH_ROUND="2")
        try:
            processes.wait(lambda: ended(processes, workers) or steps.round_of_all(1, after=1))
        except GoneError:
            return f"upstream, {workers} workers: no step and no end within {time.monotonic() - killed:.0f} s of the kill"
        after = time.monotonic() - killed
        codes = ended(processes, workers)
        left = "the scheduler stays" if processes.last["sched"].poll() is None else "the scheduler ends"
        if codes:
            return (
                f"upstream, {workers} workers: fails {after:.1f} s after the kill, exit codes {codes}; {left}"
            )
        return f"upstream, {workers} workers: steps again {after:.1f} s after the kill"


def ended(processes: Processes, workers: int) -> list[int]:
    """Exit codes, once every worker has ended."""
    codes = [processes.last[str(number)].poll() for number in range(workers)]
    return [code for code in codes if code is not None] if None not in codes else []


def main() -> None:
    """Measure and print row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="4", help="numbers of workers, with commas (4)")
    parser.add_argument("--kills", type=int, default=10, help="recoveries per row (10)")
    parser.add_argument("--window", type=float, default=12.0, help="seconds that a lost id is refused (12)")
    parser.add_argument("--only", default="engine,launcher,upstream,floors", help="which groups, with commas")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    only = set(options.only.split(","))
    if "floors" in only:
        print(json.dumps(fresh(5, WORK)), flush=True)
    for workers in map(int, options.workers.split(",")):
        if "floors" in only:
            print(json.dumps(first_start(workers)), flush=True)
        if "engine" in only:
            for window_s in (options.window, 0):
                print(json.dumps(engine(workers, options.kills, window_s=window_s, script=WORK)), flush=True)
        if "launcher" in only:
            for one in under_msrun(workers, options.kills):
                print(json.dumps(one), flush=True)
        if "upstream" in only:
            print(upstream(workers), flush=True)


if __name__ == "__main__":
    main()
