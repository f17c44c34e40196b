"""What does a failure every minute cost? The time for the same steps with kills over that of an undisturbed job.

    python benchmarks/kill_a_minute.py [--minutes 10] [--every 60] [--system "msrun: standby"] [--workers 4] [--json]

Four jobs in turn, so that a machine that becomes slower meets both sides: undisturbed, killed, killed, undisturbed, each half of
`--minutes` long from the first step of all, saving every 20 steps. In the killed ones the process of the next rank gets SIGKILL every
`--every` seconds. What a job has done is the newest step that all ranks have applied: steps done twice count once. The ratio is that of
the steps per second, which is that of the times for the same steps; `ratio_within` is the same as the killed jobs alone tell it, from their
pauses and the steps that they did twice: other work on the machine moves it less. `ettr` (effective training time ratio) is the time of the
steps that were kept over the whole time of the killed jobs, everything in which nothing trained included: 1 / `ratio_within`. Row: mode,
workers, minutes, every_s, kills, steps_undisturbed, steps_killed, ratio, at_most, met, ratio_within, ettr, ettr_at_least, ettr_met,
recovery_median_ms, steps_lost, load.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field

from killed_job import job_of
from rank_log import Recovery
from rows import Row, median
from systems import System, chosen

AT_MOST = 1.03
MINUTE_S = 60.0
ETTR_AT_LEAST, ETTR_AT_LEAST_OFTEN = 0.97, 0.90
"""With a kill a minute or fewer, and with more."""


@dataclass
class Side:
    """All jobs of one kind."""

    steps: int = 0
    seconds: float = 0.0
    recoveries: list[Recovery] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds

    @property
    def ratio_within(self) -> float:
        """The whole time over that which was not lost to a recovery or to steps that were done before."""
        paused_s = sum(one.took_ms for one in self.recoveries) / 1000
        again = sum(one.steps_lost for one in self.recoveries)
        step_s = (self.seconds - paused_s) / (self.steps + again)
        return self.seconds / (self.seconds - paused_s - again * step_s)


def train(system: System, workers: int, seconds: float, every_s: float | None, side: Side) -> None:
    """One job of so many seconds, from its first step on.

    Args:
        system: what runs it.
        workers: number of ranks.
        seconds: how long.
        every_s: seconds from one kill to the next, the first after half of that; None: it is not killed.
        side: what is added to.
    """
    with job_of(system, workers) as job:
        job.begin()
        job.wait_for_standbys()
        first_step, begun = job.common_step(), time.monotonic()
        kills = int(seconds / every_s) if every_s else 0
        for kill in range(kills):
            job.train_until(begun + (kill + 0.5) * (every_s or 0.0))
            side.recoveries.append(job.kill_now())
        job.train_until(begun + seconds)
        side.steps += job.common_step() - first_step
        side.seconds += time.monotonic() - begun


def measure(system: System, workers: int, minutes: float, every_s: float) -> Row:
    """Both sides."""
    undisturbed, killed = Side(), Side()
    loads = []
    for side in (undisturbed, killed, killed, undisturbed):
        train(system, workers, minutes * 30, every_s if side is killed else None, side)
        loads.append(os.getloadavg()[0])
    ratio = undisturbed.rate / killed.rate
    ettr = 1 / killed.ratio_within
    ettr_at_least = ETTR_AT_LEAST if every_s >= MINUTE_S else ETTR_AT_LEAST_OFTEN
    return {
        "mode": system.name,
        "workers": workers,
        "minutes": minutes,
        "every_s": every_s,
        "kills": len(killed.recoveries),
        "steps_undisturbed": undisturbed.steps,
        "steps_killed": killed.steps,
        "ratio": round(ratio, 4),
        "at_most": AT_MOST,
        "met": ratio <= AT_MOST,
        "ratio_within": round(killed.ratio_within, 4),
        "ettr": round(ettr, 4),
        "ettr_at_least": ettr_at_least,
        "ettr_met": ettr >= ettr_at_least,
        "recovery_median_ms": median([one.took_ms for one in killed.recoveries]),
        "steps_lost": median([one.steps_lost for one in killed.recoveries]),
        "load": median(loads),
    }


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="of training undisturbed, and as many with kills (10)"
    )
    parser.add_argument("--every", type=float, default=60, help="seconds from kill to kill (60)")
    parser.add_argument("--system", action="append", help='of recover.py; repeat it ("msrun: standby")')
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--torchft-python", default="", help="an interpreter that has torchft (this one)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for system in chosen(options.system or ["msrun: standby"], options.torchft_python):
        one = (
            {"mode": system.name, "not_available": system.missing}
            if system.missing
            else measure(system, options.workers, options.minutes, options.every)
        )
        print(
            json.dumps(one) if options.json else "\n".join(f"{key:18} {value}" for key, value in one.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()
