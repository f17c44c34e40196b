"""How soon a death is noticed: by the scheduler, and by every survivor.

    python benchmarks/detect.py [--workers 4] [--kills 50] [--json]

Rows: mode, workers, median_ms, p99_ms, worst_ms, limit_ms, n.

suspected     from SIGKILL of a worker until the scheduler has written down that it suspects it; limit 100 ms.
interrupted   from SIGKILL until a survivor's training stops, by the scheduler's message or by its own collective; limit MS_RECONNECT_GRACE + 100 ms. One
              measurement for each survivor of each kill.

Exit code 1 if a p99 is above its limit. Everything runs in a temporary directory; only processes that were started here are killed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import time
from datetime import datetime
from pathlib import Path

from one_by_one import Kills, cluster
from rows import Row, row

from recovery.core.records import EventKind
from recovery.store.reader import read_events

GRACE_MS = 500
"""Default of MS_RECONNECT_GRACE."""
LEEWAY_MS = 100
INTERRUPTED = re.compile(r"^(\S+Z) \w+ role=worker event=(?:interrupted|collective_failed) ", re.MULTILINE)

Kill = tuple[float, str]
"""When (wall ms), and whom."""


def suspected(recovery_path: Path, kills: list[Kill]) -> list[float]:
    """Milliseconds from each kill to the scheduler's suspicion."""
    events = [
        stored
        for stored in read_events(recovery_path, limit=1_000_000)
        if stored.event.kind is EventKind.NODE_SUSPECTED
    ]
    return [
        min(
            stored.wall_ms - killed_ms
            for stored in events
            if stored.event.node_id == victim and stored.wall_ms >= int(killed_ms)
        )
        for killed_ms, victim in kills
    ]


def interrupted(place: Path, workers: int, kills: list[Kill]) -> list[float]:
    """Milliseconds from each kill to each survivor's own line that its generation is over."""
    said = {
        f"worker_{number}": [
            datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() * 1000
            for stamp in INTERRUPTED.findall((place / f"worker_{number}.log").read_text())
        ]
        for number in range(workers)
    }
    return [
        min(at_ms - killed_ms for at_ms in stamps if at_ms >= int(killed_ms))
        for killed_ms, victim in kills
        for name, stamps in said.items()
        if name != victim
    ]


def measure(workers: int, count: int) -> list[Row]:
    """Kill a worker so many times, at window 0, and read what was written down."""
    chosen = random.Random(3)
    kills: list[Kill] = []
    with cluster(workers, 0) as (processes, start):

        def kill() -> float:
            victim = f"worker_{chosen.randrange(workers)}"
            kills.append((time.time() * 1000, victim))
            processes.last[victim].kill()
            processes.last[victim].wait()
            start(victim)
            return kills[-1][0]

        if Kills(processes, workers, "sched").measure(count, kill):
            print(processes.tails(), file=sys.stderr)
            sys.exit(1)
        times = {
            "suspected": (suspected(processes.place / "recovery", kills), LEEWAY_MS),
            "interrupted": (interrupted(processes.place, workers, kills), GRACE_MS + LEEWAY_MS),
        }
    rows = []
    for mode, (found_ms, limit_ms) in times.items():
        common = row(mode, workers, found_ms, [])
        wanted = {name: common[name] for name in ("mode", "workers", "median_ms", "p99_ms", "n")}
        rows.append({**wanted, "worst_ms": round(max(found_ms), 1), "limit_ms": limit_ms})
    return rows


def main() -> None:
    """Measure, print, and fail if it took too long."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4, help="number of workers (4)")
    parser.add_argument("--kills", type=int, default=50, help="how many (50)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    rows = measure(options.workers, options.kills)
    for one in rows:
        print(json.dumps(one) if options.json else "  ".join(f"{name} {one[name]}" for name in one))
    sys.exit(int(any(one["p99_ms"] > one["limit_ms"] for one in rows)))


if __name__ == "__main__":
    main()
