"""The scripts of examples/startup_method, started as a person starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.cluster.harness import free_port
from tests.pace import wait_for

SCRIPTS = Path(__file__).parents[2] / "examples" / "startup_method"
AS_ROOT = "--allow-run-as-root --oversubscribe --bind-to none"


def small_job_environment() -> dict[str, str]:
    """Variables for an example's scripts: two workers, a minute at most, a port of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "COV"))}
    return {
        **kept,
        "PYTHON": sys.executable,
        "WORKERS": "2",
        "EPOCHS": "4",
        "STEP_MS": "20",
        "SAVE_STEPS": "10",
        "MS_SCHED_PORT": str(free_port()),
        "MS_REJOIN_WINDOW": "1",
        "MS_NODE_TIMEOUT": "30",
        "OMP_NUM_THREADS": "1",
    }


class Job:
    """One start in a directory; whatever of it runs at the end of the test is killed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {**small_job_environment(), "MPIRUN_ARGS": AS_ROOT}
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.living():
            process.kill()
        for script in self.started:
            script.wait(60)

    def start(self, name: str, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start one of the scripts."""
        with (self.place / "out.log").open("ab") as log:
            process = subprocess.Popen(
                [*prefix, "bash", str(SCRIPTS / name), *arguments],
                cwd=self.place,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def output(self) -> str:
        """What the scripts and their processes said, but for the begin of a log that is far too long to read."""
        logs = [self.place / "out.log", *sorted(self.place.glob("*/*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-200_000:]}" for log in logs)

    def wait(self, until: Callable[[], object], what: str) -> None:
        """Wait for something, or fail with everything that was said."""
        wait_for(until, what, self.output)

    def ends(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a script's end; gives its exit code."""
        self.wait(lambda: process.poll() is not None, "end of the script")
        return process.returncode

    def weights(self) -> str:
        """The digest that all ranks ended with."""
        found = {path.read_text() for path in self.place.glob("device/weights_*.sha256")}
        assert len(found) == 1, self.output()
        return found.pop().strip()

    def saved(self, rank: int) -> bool:
        """Has a rank a checkpoint?"""
        return any((self.place / f"ckpt_of_rank/{rank}").glob("*.json"))

    def living(self) -> list[psutil.Process]:
        """Processes that work in the job's directory, the scripts apart."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == str(self.place) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def worker(self, rank: int, script: str = "train.py") -> psutil.Process:
        """The training process of a rank."""
        for process in self.living():
            environment = process.environ()
            names = [environment.get(name) for name in ("RANK_ID", "OMPI_COMM_WORLD_RANK", "MS_NODE_ID")]
            is_training = any(word.endswith(script) for word in process.cmdline())
            if str(rank) in names and is_training and "mpirun" not in process.name():
                return process
        raise AssertionError(f"no process of rank {rank}\n{self.output()}")
