"""The scripts of an example that starts its job by run.sh and brings back what died by recover.sh, used as a person uses them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from recovery.core.records import EventKind
from recovery.errors import RecoveryError
from recovery.store.reader import read_events
from tests.cluster.startup import small_job_environment
from tests.pace import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"


class ShellExample:
    """The job of an example's run.sh in a directory. Use as a context manager: what it started dies with the test."""

    def __init__(self, name: str, place: Path, environment: Mapping[str, str] | None = None) -> None:
        """Choose the example.

        Args:
            name: of its directory.
            place: logs, checkpoints and state appear here.
            environment: further variables of every process.
        """
        self._scripts, self.place = EXAMPLES / name, place
        self._environment = {**small_job_environment(), **(environment or {})}
        self._started: set[int] = set()

    def __enter__(self) -> ShellExample:
        return self

    def __exit__(self, *exception: object) -> None:
        for pid in self._started:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if any(word.startswith(str(self._scripts)) for word in process.cmdline()):
                    process.kill()

    def script(self, name: str, *arguments: str) -> str:
        """Run one of the scripts; what it said."""
        done = subprocess.run(
            ["bash", str(self._scripts / name), *arguments],
            cwd=self.place,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        self._started |= {int(path.read_text()) for path in self.place.glob("device/*.pid")}
        return done.stdout

    def kill(self, name: str) -> None:
        """SIGKILL by the pid that the script noted."""
        os.kill(int((self.place / "device" / f"{name}.pid").read_text()), signal.SIGKILL)

    def count(self, kind: EventKind) -> int:
        """Events of a kind so far."""
        try:
            return sum(one.event.kind is kind for one in read_events(self.place / "recovery"))
        except RecoveryError:
            return 0

    def wait(self, until: Callable[[], object], what: str) -> None:
        """Wait for something to become true, or fail with what was printed last."""
        logs = self.place / "device"
        wait_for(
            until,
            what,
            lambda: "\n".join(path.read_text(errors="replace")[-2_000:] for path in logs.glob("*.log")),
        )

    def final_digests(self) -> list[str]:
        """Wait for the end; the digest that each of the two ranks has written."""
        written = [self.place / "device" / f"weights_{rank}.sha256" for rank in range(2)]
        self.wait(lambda: all(path.exists() for path in written), "final weights")
        self.wait(lambda: self.count(EventKind.JOB_FINISHED), "end of the job")
        return [path.read_text() for path in written]
