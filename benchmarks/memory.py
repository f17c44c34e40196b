"""What the processes of `recovery msrun` keep in memory when nothing fails: with workers that are spawned, forked, and with a standby.

    python benchmarks/memory.py [--workers 4] [--steps 100] [--json]

Rows: mode, process (rank, standby, template, scheduler, launcher, other), count, pss_mb, rss_mb, own_mb, each the median of a process.
pss_mb shares out what several processes have in common, so that the sum over all processes is what the host gives; own_mb is what its end
would give back. `process: all` is the sum of pss_mb.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from killed_job import KilledJob, job_of
from rows import Row, median
from systems import System, launchers

MB = 1e6
TEMPLATE = "template_process"
"""In the command line of the template."""


def kind_of(process: psutil.Process, job: KilledJob, standbys: list[int]) -> str:
    """What a process of the job is."""
    if process.pid == job.leader_pid:
        return "launcher"
    if process.pid in job.log.pids.values():
        return "rank"
    if process.pid in standbys:
        return "standby"
    if any(TEMPLATE in word for word in process.cmdline()):
        return "template"
    return "scheduler" if process.environ().get("MS_ROLE") == "MS_SCHED" else "other"


def memory_of(pid: int) -> dict[str, float]:
    """In MB."""
    found: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split()[:2]
        found[name.rstrip(":")] = int(amount) * 1024 / MB
    return {
        "pss_mb": found["Pss"],
        "rss_mb": found["Rss"],
        "own_mb": found["Private_Clean"] + found["Private_Dirty"],
    }


def measure(system: System, workers: int, steps: int) -> Iterator[Row]:
    """One job, looked at once it has trained a while."""
    with job_of(system, workers) as job:
        job.begin()
        standbys = job.wait_for_standbys()
        job.wait_for_steps(steps)
        launcher = psutil.Process(job.leader_pid)
        kinds: dict[str, list[dict[str, float]]] = {}
        for process in [launcher, *launcher.children(recursive=True)]:
            kinds.setdefault(kind_of(process, job, standbys), []).append(memory_of(process.pid))
    for kind, found in sorted(kinds.items()):
        figures = {name: median([one[name] for one in found]) for name in ("pss_mb", "rss_mb", "own_mb")}
        yield {"mode": system.name, "process": kind, "count": len(found), **figures}
    everything = [one for found in kinds.values() for one in found]
    total = round(sum(one["pss_mb"] for one in everything), 1)
    yield {"mode": system.name, "process": "all", "count": len(everything), "pss_mb": total}


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100, help="steps before the look (100)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for system in launchers()[:3]:
        rows = (
            [{"mode": system.name, "not_available": system.missing}]
            if system.missing
            else measure(system, options.workers, options.steps)
        )
        for one in rows:
            print(
                json.dumps(one)
                if options.json
                else "  ".join(f"{key}={value}" for key, value in one.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
