"""SIGKILL of a rank at every event of a step, and of the recovery behind it, with real processes. `python -m tests.faults.live_events`.

Each job goes through some strikes, one after the other (live_events_job.py); whoever ends by SIGKILL is started again at once. After it: the
bits are those of an undisturbed run, and every plan went where the rules send it (live_expected.py): 0 steps are lost where a survivor is
whole at the newest step that any survivor has ended, and elsewhere the plan says why not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from tests.cluster.harness import Cluster
from tests.faults import live_events_cases as cases
from tests.faults import live_expected
from tests.faults.live_events_cases import Case
from tests.faults.live_strikes import write_strikes
from tests.pace import HANG_S

JOB = Path(__file__).with_name("live_events_job.py")
LIVE = {"MS_ROLLBACK": "live", "MS_REJOIN": "proof"}
SPREAD = {"JOB_MESH": "hsdp"}
"""With an even number of workers."""
KILLED, FENCED = -9, 76
"""Exit codes."""
_PAUSE = threading.Event()


class EventCluster(Cluster):
    """A job that notes its events."""

    @property
    @override
    def command(self) -> Sequence[str]:
        return (sys.executable, str(JOB))

    @property
    def shards(self) -> int:
        """Parts that the state is cut into."""
        return 2 if self._environment.get("JOB_MESH") else 1

    def run(self) -> None:
        """From its start to its end."""
        self.start()
        self.go_to_end()

    def go_to_end(self) -> None:
        """Who is killed, or is fenced since it was stopped for too long, is started again."""
        deadline = time.monotonic() + HANG_S
        while any(process.poll() is None for process in self.processes.values()):
            assert time.monotonic() < deadline, f"it does not end\n{self.tails()}"
            for name, process in list(self.processes.items()):
                code = process.poll()
                assert code in (None, 0, KILLED, FENCED), f"{name} ended with {code}\n{self.tails()}"
                if code in (KILLED, FENCED):
                    self.launch(name)
            _PAUSE.wait(0.02)
        self.wait_end()


class Ended(NamedTuple):
    """A job that has ended."""

    fault: str
    """Empty: all is as it must be."""
    plans: list[live_expected.Plan]
    struck: int
    """Strikes that have fallen."""


def cluster_of(directory: Path, workers: int, **environment: str) -> EventCluster:
    """A job in a new directory."""
    directory.mkdir()
    return EventCluster(directory, workers=workers, window_s=30.0, environment={**LIVE, **environment})


def disturb(undisturbed: Cluster, directory: Path, case: Case, **environment: str) -> Ended:
    """Run a job with these strikes, and judge it."""
    strikes = write_strikes(case.strikes)
    with cluster_of(directory, undisturbed.workers, JOB_STRIKES=strikes, **environment) as cluster:
        fault = ""
        try:
            cluster.run()
            cluster.check_same_as(undisturbed, live=True)
        except AssertionError as error:
            fault = str(error)
        plans = live_expected.plans(cluster, cluster.shards)
    struck = len(list(directory.glob("struck_*")))
    if struck < len(case.strikes):
        fault = fault or f"{len(case.strikes) - struck} of its strikes did not fall"
    wrong = [f"generation {plan.expected.generation}: {plan.fault}: {plan}" for plan in plans if plan.fault]
    return Ended("\n".join([*wrong, *([fault] if fault else [])]), plans, struck)


def undisturbed_of(directory: Path, workers: int, **environment: str) -> EventCluster:
    """An undisturbed job; it has told all events of its steps."""
    with cluster_of(directory, workers, **environment) as cluster:
        cluster.run()
    return cluster


def variants(asked: Iterable[str]) -> dict[str, dict[str, str]]:
    """By name: variables of a job."""
    every = {"plain": {}, "kept": {"JOB_KEEP": "1"}, "averaged": {"JOB_AVERAGES": "1"}, "spread": SPREAD}
    return {name: every[name] for name in asked}


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.live_events", description=__doc__)
    parser.add_argument("--workers", type=int, default=3, help="number of workers (3)")
    parser.add_argument("--rank", default="all", help="who is killed: a rank, or all (all)")
    parser.add_argument("--what", choices=("all", *cases.KINDS), default="all", help="which events (all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="jobs whose strikes' words hold this")
    parser.add_argument("--variant", choices=("plain", "kept", "averaged", "spread"), action="append")
    parser.add_argument("--keep", type=Path, help="a new directory that stays there")
    asked = parser.parse_args()
    ranks = range(asked.workers) if asked.rank == "all" else [int(asked.rank)]
    kinds = cases.KINDS if asked.what == "all" else (asked.what,)
    failures = 0
    with tempfile.TemporaryDirectory(prefix="live-events-") as scratch:
        place = asked.keep or Path(scratch)
        place.mkdir(exist_ok=True)
        for name, environment in variants(asked.variant or ["plain", "kept"]).items():
            undisturbed = undisturbed_of(place / name, asked.workers, **environment)
            found = [
                case
                for case in cases.of(live_expected.notes(undisturbed.directory), ranks, asked.workers, kinds)
                if asked.only in str(case)
            ]
            failures += _report(undisturbed, place, name, found, environment)
    return int(failures > 0)


def _report(
    undisturbed: Cluster, place: Path, name: str, found: list[Case], environment: dict[str, str]
) -> int:
    begun, strikes, plans, lost, failed = time.monotonic(), 0, 0, 0, 0
    for number, case in enumerate(found):
        ended = disturb(undisturbed, place / f"{name}_{number}", case, **environment)
        strikes, plans = strikes + ended.struck, plans + len(ended.plans)
        losing = [plan for plan in ended.plans if plan.lost]
        lost += len(losing)
        for plan in losing:
            print(
                f"  {name} {number} {case}: generation {plan.expected.generation} lost {plan.lost}: {plan.reason}"
            )
        if ended.fault:
            failed += 1
            print(f"FAILED {name} {number} {case}: {ended.fault}", flush=True)
    print(
        f"{name}: {len(found)} jobs, {strikes} strikes, {plans} plans of which {lost} lost steps as the rules say, {failed} jobs failed, "
        f"{time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return failed


if __name__ == "__main__":
    sys.exit(main())
