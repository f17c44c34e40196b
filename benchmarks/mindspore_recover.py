"""How long a MindSpore job makes no step after a SIGKILL: this engine, MindSpore 2.10 alone, and the floor below both.

    python benchmarks/mindspore_recover.py [--workers 4] [--kills 10] [--window 12] [--only engine,upstream,floors]

engine: admission from the admission of the relaunched worker, which waited for --window seconds, as the survivors did.
engine: kill      window 0, relaunched at once: from the kill until all ranks have applied their first step. All ranks run a new
                  program, since MindSpore forms one world in a process: the killed one again, the others by exec.
floor: fresh      one process alone, without any world: from its start to its first step.
floor: start      the whole job's first start: from there until all ranks have applied their first step.
upstream          MindSpore's own networking with MS_ENABLE_RECOVERY=1 and MS_RECOVERY_PATH, as its documents said: one worker is
                  killed and relaunched after 3 s. Reported is what came of it, and after how long.

Run it in the environment of MindSpore (make setup-mindspore).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from one_by_one import cluster, engine, fresh
from processes import GoneError, Processes, StepLog, free_port, started
from rows import Row, row

WORK = Path(__file__).resolve().with_name("mindspore_work.py")
RELAUNCH_AFTER_S = 3.0


def first_start(workers: int) -> Row:
    """Floor: nothing has failed yet."""
    begun_ms = time.time() * 1000
    with cluster(workers, 0, WORK) as (processes, _):
        steps = StepLog(processes.place / "steps.jsonl")
        number = processes.wait(lambda: steps.round_of_all(workers, after=0), alive="sched")
        done_ms = max(wall for _, wall in steps.first[number].values())
    return row("floor: start", workers, [done_ms - begun_ms], [])


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
    parser.add_argument("--only", default="engine,upstream,floors", help="which groups, with commas")
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
        if "upstream" in only:
            print(upstream(workers), flush=True)


if __name__ == "__main__":
    main()
