"""Random kills of a job that has standbys, one after another; at the end the same bits. `python -m tests.soak.kills --kills 500`.

Each process that is killed is started again under a fresh id (MS_REPLACES), as `recovery msrun` does, so nobody waits for a window. Killed
are workers, standbys, two at once, the scheduler, the scheduler with a worker; some are stopped beyond their lease and go on later.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from recovery.core.records import EventKind
from tests.cluster import checker, small_job
from tests.cluster.small_cluster import SmallCluster

WINDOW_S = 30.0
"""Of a lost id. Nobody here waits for it."""
LEASE = {"MS_NODE_TIMEOUT": "6", "MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
BEYOND_LEASE_S = 8.0
STEP_MS = 50
KILLS_OF_A_JOB = 25
_PAUSE = threading.Event()
_KINDS = ("worker",) * 6 + ("standby", "two", "scheduler", "both", "stop", "at once")


class Killed:
    """One job, and who of it runs."""

    def __init__(self, cluster: SmallCluster, standbys: int, draw: random.Random) -> None:
        """Nothing is started yet.

        Args:
            cluster: the job's processes.
            standbys: how many wait.
            draw: who is killed, how and when.
        """
        self._cluster, self._draw = cluster, draw
        self._standbys = standbys
        self._ids = {name: name for name in (*cluster.names, *(f"standby_{n}" for n in range(standbys)))}
        """By place: the id that runs there."""
        self._starts = Counter(dict.fromkeys(self._ids, 1))
        self.kills: Counter[str] = Counter()
        self.back_s: list[float] = []
        """From each blow to a step of a later generation."""

    def start(self) -> None:
        """Start all, and wait until they train and the standbys wait."""
        for place in self._ids:
            self._launch(place)
        self._launch_scheduler()
        self._cluster.wait_step(1)

    def _launch(self, place: str, **environment: str) -> None:
        if place.startswith("standby"):
            environment["MS_STANDBY"] = "1"
        self._cluster.launch(self._ids[place], **environment)

    def _launch_scheduler(self) -> None:
        self._cluster.launch("sched", MS_STANDBY_NUM=str(self._standbys))

    def _kill(self, *places: str) -> None:
        """SIGKILL in one moment, and the next process of each under a fresh id."""
        old = [self._ids[place] for place in places]
        self._cluster.kill(*(name for name in old if self._cluster.processes[name].poll() is None))
        for place, name in zip(places, old, strict=True):
            del self._cluster.processes[name]
            self._starts[place] += 1
            self._ids[place] = f"{place}.{self._starts[place]}"
            self._launch(place, MS_REPLACES=name)

    def one(self) -> None:
        """Draw and do one, and wait until the job trains on, if it does not strike again at once."""
        self.start_again()
        kind = self._draw.choice(_KINDS)
        generation, begun = max(self._cluster.generations(), default=1), time.monotonic()
        interrupts = self._strike(kind)
        self.kills[kind] += 1
        if interrupts and kind != "at once":
            self._cluster.wait_step(1, generation=generation + 1)
            self.back_s.append(time.monotonic() - begun)
        _PAUSE.wait(self._draw.uniform(0.0, 1.0))

    def _strike(self, kind: str) -> bool:
        """Returns whether a generation ends by it for certain."""
        places = [*self._ids]
        holders = self._holders()
        victim = self._draw.choice(holders)
        if kind in ("worker", "at once"):
            self._kill(victim)
        elif kind == "standby":
            self._kill(self._draw.choice([place for place in places if place not in holders] or places))
            return False
        elif kind == "two":
            self._kill(*self._draw.sample(places, 2))
            return False
        elif kind == "scheduler":
            self._cluster.kill("sched")
            self._launch_scheduler()
            return False
        elif kind == "both":
            self._cluster.kill("sched")
            self._kill(victim)
            self._launch_scheduler()
        else:
            self._stop(victim)
            return False
        return True

    def _stop(self, place: str) -> None:
        """Longer than its lease: another one takes its rank, and it is fenced when it goes on, unless the scheduler was just away."""
        name = self._ids[place]
        self._cluster.signal(name, signal.SIGSTOP)
        _PAUSE.wait(BEYOND_LEASE_S)
        self._cluster.signal(name, signal.SIGCONT)

    def start_again(self) -> None:
        """Start in each place whose process has ended by itself the next one, as a launcher does."""
        for place, name in self._ids.items():
            if self._cluster.processes[name].poll() is not None:
                self._kill(place)

    def _holders(self) -> list[str]:
        """The places whose process has a rank now, as the events tell: a good guess is good enough."""
        taken = [one.event for one in self._cluster.events(EventKind.RANK_TAKEN_OVER)]
        of_rank = {name: name for name in self._cluster.names}
        for event in taken:
            if event.details in of_rank.values():
                [slot] = [slot for slot, holder in of_rank.items() if holder == event.details]
                of_rank[slot] = event.node_id or ""
        running = {name: place for place, name in self._ids.items()}
        return [running[name] for name in of_rank.values() if name in running] or [*self._ids]


def one_job(directory: Path, *, workers: int, standbys: int, kills: int, seed: int) -> Killed:
    """Train a job under so many blows, and compare with what an undisturbed training ends with.

    Args:
        directory: empty.
        workers: how many.
        standbys: how many.
        kills: how many blows.
        seed: draws them.
    """
    epochs = 2 + kills // 5
    last = epochs * small_job.BATCHES
    environment = {
        **LEASE,
        "JOB_EPOCHS": str(epochs),
        "JOB_STEP_MS": str(STEP_MS),
        "JOB_HELD_STEP": str(last),
    }
    with SmallCluster(directory, workers=workers, window_s=WINDOW_S, environment=environment) as cluster:
        killed = Killed(cluster, standbys, random.Random(seed))
        killed.start()
        for _ in range(kills):
            killed.one()
        # Who was stopped last has its answer within a heartbeat.
        _PAUSE.wait(BEYOND_LEASE_S)
        killed.start_again()
        cluster.go_on()
        cluster.wait_end()
        for rank in range(workers):
            found = (directory / f"result_{rank}").read_text()
            expected = small_job.value_after(rank, "", range(1, last + 1))
            assert found == expected, f"seed {seed}: rank {rank} ended otherwise\n{cluster.tails()}"
        checker.check_history(directory / "steps.jsonl", last_step=last)
    return killed


def many(place: Path, *, workers: int, standbys: int, kills: int, seed: int) -> str:
    """Train one job after the other until there were so many blows.

    Returns:
        What was done, in one line.
    """
    done: Counter[str] = Counter()
    back_s: list[float] = []
    for number in range(0, kills, KILLS_OF_A_JOB):
        directory = place / f"job_{number}"
        directory.mkdir()
        count = min(KILLS_OF_A_JOB, kills - number)
        killed = one_job(directory, workers=workers, standbys=standbys, kills=count, seed=seed + number)
        done += killed.kills
        back_s += killed.back_s
        print(f"{done.total()} of {kills} done, all bits identical so far", flush=True)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(done.items()))
    middle, worst = statistics.median(back_s), max(back_s)
    return (
        f"{done.total()} kills ({kinds}) of {workers} workers with {standbys} standbys: final values identical; "
        f"back to training after {middle:.2f} s (median), {worst:.2f} s (worst of {len(back_s)})"
    )


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how many (500)")
    parser.add_argument("--workers", type=int, default=3, help="number of workers (3)")
    parser.add_argument("--standbys", type=int, default=2, help="number of standbys (2)")
    parser.add_argument("--seed", type=int, default=1, help="draws the kills (1)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        print(
            many(
                Path(place),
                workers=asked.workers,
                standbys=asked.standbys,
                kills=asked.kills,
                seed=asked.seed,
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
