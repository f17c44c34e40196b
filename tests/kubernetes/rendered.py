"""Command lines of `recovery k8s render` and what they give."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from recovery.cli.main import load
from recovery.errors import RecoveryError

GOLDEN = Path(__file__).parent / "golden"
HOSTS = ("--name=resnet", "--image=registry.example/resnet:1", "--nnodes=2", "--nproc-per-node=4", "--gpus=4")
TASK = ("train.py", "--epochs=10", "--to=/state/checkpoints")
SHARED = ("--storage=shared", "--spares=2")
S3 = "--object-storage=s3://bucket/resnet"

LINES: dict[str, tuple[str, ...]] = {
    "jobset_claims": HOSTS,
    "jobset_shared": (*HOSTS, *SHARED, "--pod-group", "--namespace=research", "--cpus=32", "--memory=256Gi"),
    "jobset_without_restart_job": (*HOSTS, S3, "--no-restart-job", "--env=MS_ENABLE_SSL=1", "--standbys=1"),
    "job_object": (
        *(*HOSTS, S3, "--kind=job", "--spares=1", "--servers=2", "--run-as=1000", "--grace=120"),
        *(
            "--node-selector=pool=gpu",
            "--env=NOTE=$(HOME) costs $5",
            "--env-from-secret=s3",
            "--pull-secret=registry",
        ),
    ),
    "job_claimed": (*HOSTS, "--kind=job", "--claim=scratch", "--module", "--tls-secret=resnet-tls"),
    "trainjob_shared": (*HOSTS, *SHARED, "--kind=trainjob"),
    "trainjob_of_cluster": (*HOSTS, S3, "--kind=trainjob", "--cluster-runtime", "--namespace=research"),
}
"""By the name of its golden file."""


class Ended(NamedTuple):
    """A command that has ended."""

    text: str
    error: RecoveryError | None


def run(*flags: str, task: tuple[str, ...] = TASK) -> Ended:
    """The command as it is typed."""
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            load("k8s").main(["render", *flags, "--", *task], standalone_mode=False)
    except RecoveryError as error:
        return Ended(written.getvalue(), error)
    return Ended(written.getvalue(), None)


def text_of(name: str) -> str:
    """What the line of a golden file gives."""
    ended = run(*LINES[name])
    assert ended.error is None, ended.error
    return ended.text


def objects_of(text: str) -> list[dict[str, Any]]:
    """The objects of a file."""
    return list(yaml.safe_load_all(text))


def pods_of(text: str) -> list[dict[str, Any]]:
    """The templates of all pods, wherever they stand."""
    return [pod for one in objects_of(text) for pod in _pods(one)]


def pod_of(text: str, role: str) -> dict[str, Any]:
    """The first of a role."""
    return next(
        pod for pod in pods_of(text) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == role
    )


def jobs_of(text: str) -> list[dict[str, Any]]:
    """The specs of all Jobs, wherever they stand."""
    return [job for one in objects_of(text) for job in _jobs(one)]


def _jobs(one: Any) -> list[dict[str, Any]]:
    if isinstance(one, list):
        return [job for part in one for job in _jobs(part)]
    if not isinstance(one, dict):
        return []
    if "podFailurePolicy" in one:
        return [one]
    return [job for part in one.values() for job in _jobs(part)]


def _pods(one: Any) -> list[dict[str, Any]]:
    return [job["template"] for job in _jobs(one)]
