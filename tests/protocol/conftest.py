"""A real scheduler process for two workers, with short waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import free_port
from tests.pace import wait_for
from tests.protocol.websocket import request
from tests.warm.process import Process


class Scheduler:
    """The process, and where it listens."""

    def __init__(self, directory: Path, environment: dict[str, str] | None = None) -> None:
        self.port, self._log = free_port(), directory / "scheduler.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}
        with self._log.open("ab") as log:
            self.process = Process(
                [sys.executable, "-m", "recovery", "scheduler"],
                cwd=directory,
                env={
                    **kept,
                    "MS_WORKER_NUM": "2",
                    "MS_SCHED_HOST": "127.0.0.1",
                    "MS_SCHED_PORT": str(self.port),
                    "MS_ENABLE_RECOVERY": "1",
                    "MS_RECOVERY_PATH": "recovery",
                    "MS_NODE_TIMEOUT": "20",
                    "MS_REJOIN_WINDOW": "40",
                    "MS_RECONNECT_GRACE": "3",
                    "MS_JOB_TOKEN": "off",
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(self._answers, "scheduler that listens", self.log)

    def log(self) -> str:
        """Everything that it has printed."""
        return self._log.read_text(errors="replace")

    def wait_end(self) -> int:
        """Wait until it ends by itself; gives its exit code."""
        wait_for(lambda: self.process.poll() is not None, "end of the scheduler", self.log)
        return int(self.process.returncode)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            return request(self.port, "GET /healthz HTTP/1.1\nHost: x")[0] == 200
        except OSError:
            return False


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    """A job that forms; killed when the test is over, if it has not ended."""
    yield from _started(tmp_path)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Scheduler]:
    """One that waits a minute for a process whose connection broke."""
    yield from _started(tmp_path, {"MS_RECONNECT_GRACE": "60"})


@pytest.fixture(scope="module")
def forming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """One for all tests that let nobody in."""
    yield from _started(tmp_path_factory.mktemp("forming"))


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Scheduler]:
    """One that hears nobody who does not know the job's token."""
    yield from _started(tmp_path, {"MS_JOB_TOKEN": "a-token-of-the-page-0123"})


def _started(directory: Path, environment: dict[str, str] | None = None) -> Iterator[Scheduler]:
    started = Scheduler(directory, environment)
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGKILL)
    started.process.wait(60)
