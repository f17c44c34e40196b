"""How long is a job paused when a node of its cluster is lost? By a spare node, and by what the engine does by itself, on a real Slurm and a real Ray of this machine.

    .venv-ray/bin/python -m benchmarks.node_lost [--times 3] [--only slurm,ray] [--json]

Rows: engine, how, lease_s (MS_NODE_TIMEOUT), ms (from the node's end to the first step that every rank has done behind it; the median), all of them. A node that is
lost says goodbye to nobody: its lease is most of it. `requeue` is Slurm's, which notices after SlurmdTimeout (5 s here, 300 s by default) and waits two
minutes; `requeue, at once` is the same with a job whose wait is cut off (`scontrol update StartTime=now`). `group restart` is Ray Train's (`pip install ray[train]` into that
environment). Needs root, `make tools-of-clusters` and `make setup-ray`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster.test_slurm import HELD, Job
from tests.faults.slurm import slurm
from tests.pace import wait_for
from tests.ray.ray_cluster import ray_cluster
from tests.ray.test_ray_jobs import Job as RayJob
from tests.ray.test_ray_jobs import node_of

_RAY_TRAIN = Path(__file__).with_name("program_ray_train.py")
_RANKS, _STEPS_BEFORE = 2, 60

WAYS = (
    *(
        ("slurm", "spare", 30),
        ("slurm", "spare", 5),
        ("slurm", "requeue, at once", 30),
        ("slurm", "requeue", 30),
    ),
    *(("ray", "spare", 30), ("ray", "spare", 5), ("ray", "group restart", 0)),
)


def pause_ms(engine: str, how: str, lease_s: int) -> int:
    """Of one job that loses a node."""
    if engine == "slurm":
        return _on_slurm(how, lease_s)
    return _on_ray(lease_s) if lease_s else _ray_train()


def _on_slurm(how: str, lease_s: int) -> int:
    with tempfile.TemporaryDirectory() as place, slurm(3) as cluster:
        held = {**HELD, "MS_NODE_TIMEOUT": str(lease_s)}
        with Job(Path(place), cluster, **held) as job:
            job.submit("--nodes=2", f"--spares={int(how == 'spare')}")
            job.wait_step(12)
            job.wait_commit(10)
            if how == "spare":
                job.wait_event(EventKind.NODE_ADMITTED, "standby_0")
            lost_ms = time.time() * 1000
            cluster.kill_node(1)
            if how == "requeue, at once":
                job.wait_requeued()
            return _until_all_step(job.directory, lost_ms)


def _on_ray(lease_s: int) -> int:
    with (
        tempfile.TemporaryDirectory() as place,
        RayJob(Path(place), MS_NODE_TIMEOUT=str(lease_s)) as job,
        ray_cluster(3, 0, job.environment) as cluster,
    ):
        job.drive(cluster, spares=1)
        job.wait_step(12)
        job.wait_commit(10)
        job.wait_event(EventKind.NODE_ADMITTED, "standby_0")
        lost_ms = time.time() * 1000
        cluster.kill_node(node_of(cluster, "1"))
        return _until_all_step(job.directory, lost_ms)


def _ray_train() -> int:
    with tempfile.TemporaryDirectory() as place, ray_cluster(3, 0, dict(os.environ)) as cluster:
        command = (sys.executable, str(_RAY_TRAIN), cluster.address, place)
        with subprocess.Popen(command, env=cluster.environment, stdout=subprocess.DEVNULL) as driver:
            log = Path(place, "steps.jsonl")
            wait_for(lambda: log.exists() and len(checker.lines(log)) > _STEPS_BEFORE, "steps of Ray Train")
            [lost, *_] = [node for node in cluster.nodes if _trains(cluster.processes(node))]
            lost_ms = time.time() * 1000
            cluster.kill_node(lost)
            try:
                return _until_all_step(Path(place), lost_ms)
            finally:
                Path(place, "done").touch()
                driver.wait(60)


def _trains(pids: Iterable[int]) -> bool:
    """Does a worker of Ray Train run there?"""
    return any(
        "RayTrainWorker" in Path(f"/proc/{pid}/cmdline").read_text()
        for pid in pids
        if Path(f"/proc/{pid}").exists()
    )


def _until_all_step(directory: Path, lost_ms: float) -> int:
    wait_for(lambda: len(_first_steps(directory, lost_ms)) == _RANKS, "step of all")
    return int(max(_first_steps(directory, lost_ms).values()) - lost_ms)


def _first_steps(directory: Path, since_ms: float) -> dict[int, float]:
    """By rank, when it did its first step behind a moment. What the lost node still wrote is of the generation before."""
    lines = checker.lines(directory / "steps.jsonl")
    before = max(line["generation"] for line in lines if line["wall_ms"] < since_ms)
    found: dict[int, float] = {}
    for line in lines:
        if line["generation"] > before:
            found.setdefault(line["rank"], line["wall_ms"])
    return found


def rows(times: int, only: str) -> Iterator[dict[str, object]]:
    """One for each way."""
    for engine, how, lease_s in WAYS:
        if engine not in only.split(","):
            continue
        each = [pause_ms(engine, how, lease_s) for _ in range(times)]
        yield {
            "engine": engine,
            "how": how,
            "lease_s": lease_s,
            "ms": int(statistics.median(each)),
            "all": each,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default="slurm,ray")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for row in rows(asked.times, asked.only):
        print(json.dumps(row) if asked.json else "  ".join(f"{name}={value}" for name, value in row.items()))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
