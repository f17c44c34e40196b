"""A cluster whose processes run the training without a framework (small_job.py), and may be parameter servers."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.cluster import checker, small_job
from tests.cluster.harness import Cluster
from tests.warm.process import PLAIN, is_cold

SCRIPT = "train.py"
PYTHON = (sys.executable, SCRIPT)
PYTEST = (str(Path(sysconfig.get_path("scripts"), "pytest")), "-s", "-v", SCRIPT)
"""As the documents of msrun show it."""
_WITHOUT_OUR_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""A user's pytest has none of the plugins of this project's tests, which take most of its start."""
LAST_STEP = small_job.EPOCHS * small_job.BATCHES


class SmallCluster(Cluster):
    """Workers `worker_<n>`, servers `server_<n>` and `sched`. The script lies where it is started, as a user's does."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        servers: int = 0,
        window_s: float = 0.0,
        command: Sequence[str] = PYTHON,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Choose the shape; `start` starts all.

        Args:
            directory: everything lies here.
            workers: how many.
            servers: how many; MS_SERVER_NUM.
            window_s: MS_REJOIN_WINDOW.
            command: how the script is started.
            environment: further variables of every process.
        """
        super().__init__(
            directory,
            workers=workers,
            window_s=window_s,
            environment={
                "MS_SERVER_NUM": str(servers),
                **({} if is_cold() else _WITHOUT_OUR_PLUGINS),
                **(environment or {}),
            },
        )
        self._command, self.servers = command, [f"server_{number}" for number in range(servers)]
        shutil.copy(small_job.__file__, directory / SCRIPT)

    @override
    def start(self) -> None:
        """Start everything, the scheduler last."""
        for name in (*self.names, *self.servers, "sched"):
            self.launch(name)

    @property
    @override
    def imports(self) -> tuple[str, ...]:
        return PLAIN

    @property
    @override
    def command(self) -> Sequence[str]:
        return self._command

    def wait_exit(self, name: str) -> int:
        """Wait for the end of a process; gives its exit code."""
        process = self.processes[name]
        self.wait(lambda: process.poll() is not None, f"end of {name}")
        assert process.returncode is not None, "it has ended"
        return process.returncode

    def seen(self, name: str) -> dict[str, Any]:
        """What the training function found at its newest entry."""
        found: dict[str, Any] = json.loads((self.directory / f"seen_{name}.json").read_text())
        return found

    def last_step_ms(self) -> int:
        """Wall time of the step that was counted last, on any rank."""
        return max(int(line["wall_ms"]) for line in checker.lines(self.directory / "steps.jsonl"))

    def check_result(self) -> None:
        """Every rank ended with the value of an undisturbed training, every step counted once."""
        for rank in range(self.workers):
            found = (self.directory / f"result_{rank}").read_text()
            assert found == small_job.result_of(rank), f"rank {rank} ended otherwise\n{self.tails()}"
        checker.check_history(self.directory / "steps.jsonl", last_step=LAST_STEP)


class PlacedCluster(SmallCluster):
    """What starts its processes says where they are."""

    def __init__(
        self, directory: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
    ) -> None:
        """As `SmallCluster`."""
        super().__init__(directory, workers=workers, environment=environment)
        for name in ("MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_SERVER_NUM"):
            del self._environment[name]
