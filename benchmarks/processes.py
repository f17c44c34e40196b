"""Processes that a measurement starts, and the log of the steps that they apply."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

PATIENCE_S = 90.0


class GoneError(Exception):
    """What was measured did not come back in time, or ended."""


class StepLog:
    """What the ranks have applied so far, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.first: dict[int, dict[int, tuple[int, float]]] = {}
        self.newest: dict[int, dict[int, int]] = {}

    def look(self) -> None:
        """Read the whole lines that are new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as log:
            log.seek(self._offset)
            content = log.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            line = json.loads(text)
            number, rank = line.get("round", line.get("generation")), line["rank"]
            self.first.setdefault(number, {}).setdefault(rank, (line["step"], line["wall_ms"]))
            self.newest.setdefault(number, {})[rank] = line["step"]

    def round_of_all(self, workers: int, *, after: int) -> int | None:
        """The newest round (generation or restart) in which every rank has stepped, if it came after the given one."""
        self.look()
        full = [number for number, ranks in self.first.items() if number > after and len(ranks) == workers]
        return max(full, default=None)

    def steps_in(self, number: int, workers: int) -> int:
        """Steps that every rank has applied in a round."""
        self.look()
        ranks = self.newest.get(number, {})
        if len(ranks) < workers:
            return 0
        return min(step - self.first[number][rank][0] + 1 for rank, step in ranks.items())


class Processes:
    """What one measurement started. Nothing of it outlives the `with`."""

    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        self.place = place
        self.last: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("MS_", "TORCH", "MASTER_"))
            },
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            **environment,
        }

    def start(self, name: str, command: list[str], *, python: str = "", **environment: str) -> None:
        """Start a process in a session of its own; its log is appended to.

        Args:
            name: of the process and its log.
            command: what the interpreter is given.
            python: another program than this interpreter.
            environment: what is added to everybody's.
        """
        with (self.place / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [python or sys.executable, *command],
                cwd=self.place,
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.last[name] = process
        self._all.append(process)

    def wait(self, until: Callable[[], Any], *, alive: str = "") -> Any:
        """Wait for something to become true and return it.

        Raises:
            GoneError: it did not, within PATIENCE_S or before the process named `alive` ended.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not (found := until()):
            if time.monotonic() > deadline or (alive and self.last[alive].poll() is not None):
                raise GoneError(alive)
            time.sleep(0.01)
        return found

    def tails(self) -> str:
        """The last lines of every log, for a measurement that failed."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.place.glob("*.log"))
        )

    def end(self) -> None:
        """Kill what is left, with the children: torchrun's workers lead sessions of their own."""
        family: list[psutil.Process] = []
        for process in self._all:
            with suppress(psutil.Error):
                if process.poll() is None:
                    family += [
                        *psutil.Process(process.pid).children(recursive=True),
                        psutil.Process(process.pid),
                    ]
        for member in family:
            with suppress(psutil.Error):
                member.kill()
        for process in self._all:
            process.wait()
        psutil.wait_procs(family, timeout=10)


@contextmanager
def started(**environment: str) -> Iterator[Processes]:
    """A place and its processes."""
    with tempfile.TemporaryDirectory(prefix="recover-") as place:
        processes = Processes(Path(place), environment)
        try:
            yield processes
        finally:
            processes.end()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
