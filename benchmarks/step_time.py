"""Are steps slower with a template and a standby beside them? Jobs in pairs, in turn, of the same training.

    python benchmarks/step_time.py [--pairs 5] [--workers 4] [--steps 850] [--json]

Each pair is a job of `recovery msrun` with spawned workers and no standby, and one with forked workers and a standby that waits; which comes
first changes from pair to pair. Of each job the time between two steps of rank 0 is taken, as median and as mean, once the standby waits
and 50 steps are done. Row: mode, workers, without_ms, with_ms, ratio_median (of the pairs' ratios of medians), ratio_min, ratio_max,
mean_ratio_median (the same of means), n, load.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import sys

from killed_job import job_of
from rows import Row
from systems import System, launchers

WARM_STEPS = 50


def step_ms(system: System, workers: int, steps: int) -> tuple[float, float]:
    """Median and mean of the time between two steps of rank 0."""
    with job_of(system, workers) as job:
        job.begin()
        job.wait_for_standbys()
        job.log.look()
        begun = len(job.log.steps)
        job.wait_for_more_steps(WARM_STEPS + steps)
        walls = [step.wall_ms for step in job.log.steps[begun:] if step.rank == 0][WARM_STEPS:]
    between = [after - before for before, after in itertools.pairwise(walls)]
    return statistics.median(between), statistics.mean(between)


def measure(plain: System, full: System, pairs: int, workers: int, steps: int) -> Row:
    """All pairs."""
    found: dict[str, list[tuple[float, float]]] = {plain.name: [], full.name: []}
    loads = []
    for pair in range(pairs):
        for system in (plain, full) if pair % 2 == 0 else (full, plain):
            found[system.name].append(step_ms(system, workers, steps))
            loads.append(os.getloadavg()[0])
    both = list(zip(found[plain.name], found[full.name], strict=True))
    ratios = [with_[0] / without[0] for without, with_ in both]
    return {
        "mode": f"{full.name} over {plain.name}",
        "workers": workers,
        "without_ms": round(statistics.median(median for median, _ in found[plain.name]), 3),
        "with_ms": round(statistics.median(median for median, _ in found[full.name]), 3),
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "mean_ratio_median": round(statistics.median(with_[1] / without[1] for without, with_ in both), 4),
        "n": pairs,
        "load": round(statistics.median(loads), 1),
    }


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=850)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    spawn, _, standby, *_ = launchers()
    one = (
        {"mode": standby.name, "not_available": standby.missing}
        if standby.missing
        else measure(spawn, standby, options.pairs, options.workers, options.steps)
    )
    print(json.dumps(one) if options.json else "\n".join(f"{key:18} {value}" for key, value in one.items()))


if __name__ == "__main__":
    main()
