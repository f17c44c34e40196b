"""What the commands say of a recovery path, and a scheduler of its job, for programs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from typer.testing import CliRunner

from recovery.cli.main import app
from recovery.core.records import EventKind
from tests.cluster.small_cluster import SmallCluster

JOB = Path("/mnt/job")
"""Where the golden jobs ran. The stores name their checkpoints below it."""
VIEWS: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "nodes": ("nodes",),
    "steps": ("steps",),
    "checkpoints": ("checkpoints", "--all"),
    "generations": ("generations",),
    "events": ("events", "--limit", "100000"),
    "timeline": ("timeline",),
    "plan": ("plan",),
    "verify": ("verify",),
}
"""By name of its file: the command and its flags."""
EXPORT = "export.json"


def unpacked(job: Path, to: Path) -> Path:
    """What a golden job has left, in a directory of the test; its recovery path."""
    with tarfile.open(job) as packed:
        packed.extractall(to, filter="data")
    return to / "recovery"


def view(name: str, path: Path) -> Any:
    """What a command answers with --json."""
    return json.loads(_output(*VIEWS[name], str(path), "--json"))


def export(path: Path, scratch: Path) -> Any:
    """What `recovery export` writes."""
    file = scratch / EXPORT
    _output("export", str(path), str(file))
    return json.loads(file.read_bytes())


ROUTES = ("/status", "/lost", "/generations", "/checkpoints", "/events")


def inspected(directory: Path) -> dict[str, Any]:
    """What a scheduler answers whose second worker has died after a checkpoint of both."""
    with SmallCluster(
        directory, window_s=600, servers=1, environment={"JOB_HELD_STEP": "30", "MS_JOB_TOKEN": "off"}
    ) as cluster:
        cluster.start()
        cluster.wait_event(EventKind.CHECKPOINT_COMMITTED, count=2)
        cluster.kill("worker_1")
        cluster.wait_event(EventKind.NODE_LOST, "worker_1")
        return {route: _asked(cluster.port, route) for route in ROUTES}


def _asked(port: int, route: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}{route}", timeout=20) as answer:
        return json.load(answer)


def _output(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in {0, 1}, f"{arguments}: {done.exception}\n{done.output}"
    return done.stdout
