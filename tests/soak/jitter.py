"""Jobs on a machine whose pace changes all the time, in which nothing hangs: nobody may be suspected. `python -m tests.soak.jitter --minutes 60`.

Each rank has its own share of a processor, drawn anew every few seconds between 20 and 100 %, in parts of 100 ms as a quota of a container gives it (by
SIGSTOP and SIGCONT). Neighbours compute, and pause. The script evaluates again and again, and one save of each job takes 20 s. With `MS_STEP_TIMEOUT=auto`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from recovery.core.records import EventKind
from tests.cluster.launched import LAUNCHER
from tests.soak import runs
from tests.soak.hanging import SLOW_SAVE
from tests.soak.runs import Run
from tests.soak.script_faces import drawn
from tests.soak.scripts import STEP_MS, ScriptCluster

_PERIOD_S = 0.1
_SHARE_LEAST = 0.2
_NEIGHBOURS = 2
_BUSY = "while True: pass"
_FOUND = (EventKind.HANG_SUSPECTED, EventKind.GENERATION_INTERRUPTED, EventKind.NODE_LOST)
"""None of them may come."""


class Quota:
    """Gives each rank of a job a share of the time, and lets neighbours compute."""

    def __init__(self, cluster: ScriptCluster, draw: random.Random) -> None:
        self._cluster, self._draw = cluster, draw
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """As long as this lasts."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _run(self) -> None:
        neighbours = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(_NEIGHBOURS)]
        try:
            while not self._over.is_set():
                for one in neighbours:
                    one.send_signal(self._draw.choice((signal.SIGSTOP, signal.SIGCONT)))
                ranks = [self._cluster.of_slot(str(rank)) for rank in range(self._cluster.workers)]
                shares = {pid: self._draw.uniform(_SHARE_LEAST, 1) for pid in ranks if pid}
                self._give(shares, self._draw.uniform(2, 10))
        finally:
            for one in neighbours:
                one.kill()
                one.wait()

    def _give(self, shares: dict[int, float], for_s: float) -> None:
        over_s = time.monotonic() + for_s
        while time.monotonic() < over_s and not self._over.wait(_PERIOD_S * (1 - max([*shares.values(), 0]))):
            # All are stopped; each goes on when what is left of the period is its share.
            left = 1.0
            for pid, share in sorted(shares.items(), key=lambda pair: -pair[1]):
                self._over.wait(_PERIOD_S * (left - share) if left < 1 else 0)
                left = share
                _signal(pid, signal.SIGCONT)
            self._over.wait(_PERIOD_S * left)
            for pid in shares:
                _signal(pid, signal.SIGSTOP)
        for pid in shares:
            _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def train(directory: Path, draw: random.Random, *, epochs: int) -> tuple[str, Counter[str]]:
    """Train one job to its end.

    Args:
        directory: empty.
        draw: all of it.
        epochs: how long it is.

    Returns:
        A fault, empty: none; and how often what may not come has come.
    """
    form = drawn("three_lines", draw)
    more = {
        "MS_STEP_TIMEOUT": "auto",
        "JOB_EPOCHS": str(epochs),
        "JOB_HANG": f"{SLOW_SAVE} {draw.randrange(form.workers)} {draw.randint(20, 40)}",
    }
    with ScriptCluster(directory, form, step_ms=STEP_MS, more=more) as cluster:
        cluster.begin()
        with Quota(cluster, draw)():
            cluster.wait(cluster.is_over, "end of the job")
        found = Counter(stored.event.kind.value for kind in _FOUND for stored in cluster.events(kind))
        code = cluster.processes[LAUNCHER].returncode
    fault = f"exit code {code}" if code else ", ".join(found)
    return fault or ("" if (directory / "hung").exists() else "no save was slow"), found


def main() -> int:
    """Run from the command line; returns the exit code: 1 where somebody was suspected, or a job failed."""
    parser = runs.options("jitter", __doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long, at least (60)")
    parser.add_argument("--epochs", type=int, default=40, help="of each job (40)")
    asked = parser.parse_args()
    run, sums = Run("jitter", asked), Counter[str]()
    for seed in itertools.count(asked.seed):
        if run.minutes >= asked.minutes:
            break
        directory = run.place / f"job-{seed}"
        directory.mkdir()
        fault, found = train(directory, random.Random(seed), epochs=asked.epochs)
        if not fault:
            shutil.rmtree(directory)
        sums.update(jobs=1, **found)
        run.tell({"seed": seed}, fault, kept=directory.name)
    return run.end({"minutes": round(run.minutes, 1), **sums, "failed": run.failed})


if __name__ == "__main__":
    sys.exit(main())
