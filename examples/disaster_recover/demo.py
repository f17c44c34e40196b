"""The whole run in two minutes: train, kill a worker and the scheduler, bring them back, compare with an undisturbed run.

python demo.py [torch|mindspore]    # in demo/ beside this file; ends with `final weights identical: yes` and exit code 0 only then
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from lost import SCRIPTS

from recovery.core.records import EventKind
from recovery.errors import RecoveryError
from recovery.store.reader import StoredEvent, read_events

EXAMPLE = Path(__file__).resolve().parent
WORK = EXAMPLE / "demo"
FRAMEWORK = sys.argv[1] if len(sys.argv) > 1 else "torch"
WORKERS = 4
# Each has 15 steps with 4 workers.
EPOCHS = 40
LIMIT_S = 240.0

SHOWN = {
    EventKind.NODE_SUSPECTED: "{node} went silent ({reason})",
    EventKind.NODE_LOST: "{node} is lost: {reason}",
    EventKind.GENERATION_INTERRUPTED: "generation {generation} ends: {reason}",
    EventKind.NODE_REFUSED: "{node} came back too early. {reason}",
    EventKind.NODE_ADMITTED: "{node} is in, incarnation {incarnation}",
    EventKind.PLAN_MADE: "generation {generation} starts from step {step} ({reason})",
    EventKind.SCHEDULER_RESTARTED: "the scheduler is back, incarnation {incarnation}",
    EventKind.JOB_FINISHED: "finished: {reason}",
    EventKind.JOB_FAILED: "FAILED: {reason}",
}


class Job:
    """One run of the example in a directory of its own."""

    def __init__(self, name: str, step_ms: int) -> None:
        self.directory = WORK / name
        self.directory.mkdir(parents=True)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MS_")},
            "FRAMEWORK": FRAMEWORK,
            "WORKERS": str(WORKERS),
            "EPOCHS": str(EPOCHS),
            "STEP_MS": str(step_ms),
            "MS_SCHED_PORT": str(free_port()),
            "MS_STEP_LOG": "steps.jsonl",
            "PYTHON": sys.executable,
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
        }
        self._seen = 0
        self._begun = time.monotonic()
        self._admitted_ms = 0

    def run(self, script: str, *arguments: str) -> None:
        """Run one of the example's shell scripts here."""
        subprocess.run(
            ["bash", str(EXAMPLE / script), *arguments],
            cwd=self.directory,
            env=self.environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def pid(self, name: str) -> int:
        """The process that was started last under this name."""
        return int((self.directory / "device" / f"{name}.pid").read_text())

    def kill(self, name: str) -> None:
        """SIGKILL: no shutdown, no clean-up."""
        os.kill(self.pid(name), signal.SIGKILL)
        say(f"kill -9 {name} (pid {self.pid(name)}) at step {self.step()}")

    def step(self) -> int:
        """Newest step that any rank has applied."""
        log = self.directory / "steps.jsonl"
        if not log.exists():
            return 0
        lines = log.read_bytes()[-400:].splitlines()
        return int(lines[-1].split(b'"step": ')[1].split(b",")[0]) if lines else 0

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait, and print what happens meanwhile."""
        while not until():
            self.report()
            if time.monotonic() - self._begun > LIMIT_S:
                raise SystemExit(
                    f"gave up after {LIMIT_S:.0f} s waiting for {what}; logs: {self.directory}/device"
                )
            time.sleep(0.05)
        self.report()

    def report(self) -> list[StoredEvent]:
        """Print the events that are new in the store."""
        try:
            events = read_events(self.directory / "recovery", after=self._seen)
        except RecoveryError:
            # The store is not there yet.
            return []
        for stored in events:
            self._seen = stored.sequence
            event = stored.event
            if event.kind is EventKind.NODE_ADMITTED:
                self._admitted_ms = stored.wall_ms
            if event.kind is EventKind.NODE_ADMITTED and (event.incarnation or 0) < 2:
                continue
            if event.kind is EventKind.FIRST_STEP_DONE and (event.generation or 0) > 1:
                say(
                    f"rank {event.rank}: first step done, {stored.wall_ms - self._admitted_ms} ms after the admission"
                )
            if event.kind in SHOWN:
                say(
                    SHOWN[event.kind].format(
                        node=event.node_id,
                        reason=event.reason,
                        generation=event.generation,
                        incarnation=event.incarnation,
                        step=event.step,
                    )
                )
        return list(events)

    def finished(self) -> bool:
        """Has every rank written its digest, and has every process gone?"""
        return len(self.digests()) == WORKERS and not self.alive()

    def digests(self) -> dict[int, str]:
        """SHA-256 of the final weights by rank."""
        found: dict[int, str] = {}
        for rank in range(WORKERS):
            with contextlib.suppress(FileNotFoundError):
                found[rank] = (self.directory / "device" / f"weights_{rank}.sha256").read_text().strip()
        return found

    def alive(self) -> list[psutil.Process]:
        """Processes that this job started and that still run."""
        found: list[psutil.Process] = []
        for note in (self.directory / "device").glob("*.pid"):
            with contextlib.suppress(psutil.Error, ValueError):
                process = psutil.Process(int(note.read_text()))
                if process.status() != psutil.STATUS_ZOMBIE and any(
                    Path(word).name in SCRIPTS for word in process.cmdline()
                ):
                    found.append(process)
        return found

    def clean_up(self) -> None:
        """Leave no process behind."""
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()


def say(text: str) -> None:
    """One line of the output, with the time since the demo began."""
    print(f"{time.monotonic() - BEGUN:6.1f} s  {text}", flush=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def disturbed() -> dict[int, str]:
    """The run in which processes die."""
    job = Job("disturbed", step_ms=40)
    try:
        say(f"training with {WORKERS} workers, a checkpoint every 100 steps")
        job.run("run.sh")
        target = random.randint(120, 280)
        job.wait(lambda: job.step() >= target, f"step {target}")
        victim = f"worker_{random.randrange(WORKERS)}"
        job.kill(victim)
        job.run("recover.sh", victim)
        say(f"recover.sh {victim}: started again at once; its id is refused for 30 s, it warms up meanwhile")
        redone = target + 100
        job.wait(lambda: job.step() >= redone and "incarnation 2" in admissions(job), "the worker's return")
        job.kill("sched")
        before = job.step()
        time.sleep(2)
        say(f"2 s without a scheduler: the workers went on from step {before} to {job.step()}")
        job.run("recover.sh", "sched")
        say("recover.sh sched")
        job.wait(job.finished, "the end of training")
        return job.digests()
    finally:
        job.clean_up()


def admissions(job: Job) -> str:
    """Every admission so far, as text."""
    events = read_events(job.directory / "recovery", limit=100_000)
    return " ".join(
        f"incarnation {stored.event.incarnation}"
        for stored in events
        if stored.event.kind is EventKind.NODE_ADMITTED
    )


def undisturbed() -> dict[int, str]:
    """The same training, left alone."""
    job = Job("undisturbed", step_ms=0)
    try:
        say("the same training, undisturbed")
        job.run("run.sh")
        job.wait(job.finished, "the end of training")
        return job.digests()
    finally:
        job.clean_up()


def main() -> int:
    """Both runs, then the comparison."""
    if WORK.exists():
        # What an earlier demo wrote, nothing else lies there.
        shutil.rmtree(WORK)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    after_failures, alone = disturbed(), undisturbed()
    print("\nrank  sha256 of the final weights")
    for rank in range(WORKERS):
        print(f"{rank:4}  {after_failures[rank]}  with failures\n      {alone[rank]}  undisturbed")
    same = after_failures == alone and len(set(alone.values())) == 1
    print(f"final weights identical: {'yes' if same else 'no'}")
    return 0 if same else 1


BEGUN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
