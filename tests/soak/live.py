"""Random kills of jobs that go on from a survivor's memory; at the end the same bits. `python -m tests.soak.live --kills 200`.

Killed are 1 to all ranks in one moment, with or without the scheduler, the scheduler alone; now and then a rank is stopped beyond its lease.
The next blow often falls while the last one is still being mended: in a plan, in the giving of a state, before all have compared.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from recovery.core.records import EventKind
from tests.cluster.harness import Cluster
from tests.cluster.test_sharded_state import ShardedCluster

EPOCHS = 12
STEP_MS = 10
BLOWS_OF_A_JOB = 5
LIVE = {
    "MS_ROLLBACK": "live",
    "MS_REJOIN": "proof",
    "MS_NODE_TIMEOUT": "3",
    "MS_RETRY_INTERVAL_LOWER": "1",
    "MS_RETRY_INTERVAL_UPPER": "1",
    "JOB_EPOCHS": str(EPOCHS),
}
BEYOND_LEASE_S = 4.0
_PAUSE = threading.Event()
_KINDS = ("ranks",) * 6 + ("ranks and scheduler",) * 2 + ("scheduler", "stop")
Make = Callable[[Path, int, dict[str, str]], Cluster]
"""A cluster in a directory, of so many workers, with these variables."""


class Blows:
    """What is done to one job."""

    def __init__(self, cluster: Cluster, draw: random.Random) -> None:
        self._cluster, self._draw = cluster, draw
        self.done: Counter[str] = Counter()
        self.killed = 0
        """Processes."""

    def one(self) -> None:
        """Draw and do one. What follows from it is often not over when the next one falls."""
        kind = self._draw.choice(_KINDS)
        self.done[kind] += 1
        if kind == "stop":
            self._stop(self._draw.choice(self._cluster.names))
        else:
            self._kill(kind)
        if self._draw.random() < 0.5:
            generation = max(self._cluster.generations(), default=1)
            self._cluster.wait_step(1, generation=generation)
        _PAUSE.wait(self._draw.uniform(0.0, 2.5))
        self._start_ended_again()

    def _kill(self, kind: str) -> None:
        names: list[str] = []
        if "ranks" in kind:
            # One dies more often than all do.
            most = self._draw.choice([1, 1, len(self._cluster.names)])
            names += self._draw.sample(self._cluster.names, self._draw.randint(1, most))
        if "scheduler" in kind:
            names.append("sched")
        self._cluster.kill(*(name for name in names if self._cluster.processes[name].poll() is None))
        self.killed += len(names)
        for name in names:
            self._cluster.launch(name)

    def _stop(self, name: str) -> None:
        if self._cluster.processes[name].poll() is None:
            self._cluster.signal(name, signal.SIGSTOP)
            _PAUSE.wait(self._draw.uniform(0.5, BEYOND_LEASE_S + 1.0))
            with contextlib.suppress(ProcessLookupError):
                self._cluster.signal(name, signal.SIGCONT)

    def _start_ended_again(self) -> None:
        """As a launcher does: who was stopped for too long was fenced."""
        for name in (*self._cluster.names, "sched"):
            if self._cluster.processes[name].poll() is not None:
                self._cluster.launch(name)

    def end(self, timeout_s: float) -> None:
        """Let the job end; who is fenced only now is started again."""
        self._cluster.go_on()
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self._cluster.processes.values()):
            assert time.monotonic() < deadline, f"it did not end\n{self._cluster.tails()}"
            for name in self._cluster.names:
                if self._cluster.processes[name].poll() not in (None, 0):
                    self._cluster.launch(name)
            _PAUSE.wait(0.1)
        self._cluster.wait_end()


def one_job(
    directory: Path, undisturbed: Cluster, *, blows: int, seed: int, make: Make
) -> tuple[Blows, Counter[str]]:
    """Train a job under so many blows, and compare with what an undisturbed training ends with.

    Returns:
        What was done, and how often plans went where.
    """
    draw = random.Random(seed)
    environment = {
        **LIVE,
        "JOB_STEP_MS": str(STEP_MS),
        "JOB_KEEP": draw.choice(["", "1"]),
        "JOB_HELD_STEP": str(undisturbed.step()),
    }
    with make(directory, undisturbed.workers, environment) as cluster:
        cluster.start()
        cluster.wait_step(draw.randint(1, 30))
        struck = Blows(cluster, draw)
        for _ in range(blows):
            struck.one()
        struck.end(timeout_s=120)
        cluster.check_same_as(undisturbed, live=True)
        plans: Counter[str] = Counter()
        for stored in cluster.events(EventKind.PLAN_MADE)[1:]:
            went = any(words in stored.event.reason for words in ("in its memory", "in their memories"))
            plans["memory" if went else "checkpoint"] += 1
        return struck, plans


def make_plain(directory: Path, workers: int, environment: dict[str, str]) -> Cluster:
    """The job of the cluster tests."""
    return Cluster(directory, workers=workers, environment=environment)


def make_spread(directory: Path, workers: int, environment: dict[str, str]) -> Cluster:
    """A model that is spread over half of the ranks, and held twice (HSDP)."""
    more = {"JOB_MESH": "hsdp", "JOB_NORM": "layer", "MS_TOPO_TIMEOUT": "60"}
    return ShardedCluster(directory, workers=workers, environment={**environment, **more})


def many(place: Path, *, workers: int, kills: int, seed: int, make: Make = make_plain) -> str:
    """Train one job after the other until so many processes were killed.

    Returns:
        What was done, in one line.
    """
    done: Counter[str] = Counter()
    plans: Counter[str] = Counter()
    killed, jobs, begun = 0, 0, time.monotonic()
    (place / "undisturbed").mkdir()
    with make(place / "undisturbed", workers, {**LIVE, "JOB_STEP_MS": "0"}) as undisturbed:
        undisturbed.start()
        undisturbed.wait_end()
    while killed < kills:
        directory = place / f"job_{jobs}"
        directory.mkdir()
        struck, went = one_job(directory, undisturbed, blows=BLOWS_OF_A_JOB, seed=seed + jobs, make=make)
        jobs, killed = jobs + 1, killed + struck.killed
        done, plans = done + struck.done, plans + went
        print(
            f"{killed} of {kills} killed in {jobs} jobs, all bits identical so far: {dict(plans)}", flush=True
        )
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(done.items()))
    return (
        f"seed {seed}: {killed} processes killed in {jobs} jobs of {workers} workers ({kinds}), {time.monotonic() - begun:.0f} s: "
        f"final weights identical; plans went to memory {plans['memory']} times, to a checkpoint or the beginning {plans['checkpoint']} times"
    )


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.live", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many processes at least (200)")
    parser.add_argument("--workers", type=int, default=3, help="number of workers (3)")
    parser.add_argument("--seed", type=int, default=1, help="draws the kills (1)")
    parser.add_argument(
        "--mesh", choices=("none", "hsdp"), default="none", help="hsdp: a model that is spread over the ranks"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="live-") as place:
        make = make_plain if asked.mesh == "none" else make_spread
        print(many(Path(place), workers=asked.workers, kills=asked.kills, seed=asked.seed, make=make))
    return 0


if __name__ == "__main__":
    sys.exit(main())
