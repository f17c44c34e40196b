"""The Jobs of a job: how many pods, and when one is made again. As they are (`--kind=job`), or as a JobSet makes them. Pure."""

from __future__ import annotations

from typing import Any

from recovery.kubernetes.environment import Role
from recovery.kubernetes.exit_codes import pod_failure_policy
from recovery.kubernetes.job import KubernetesJob
from recovery.kubernetes.pods import Part, parts, template

COMPLETION_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
"""Kept by every pod of the same number."""


def indexed_jobs(job: KubernetesJob) -> list[dict[str, Any]]:
    """One Job for each role, each pod with a number of its own."""
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{job.name}-{part.name}"},
            "spec": by_index(job, part),
        }
        for part in parts(job)
    ]


def by_index(job: KubernetesJob, part: Part) -> dict[str, Any]:
    """A Job of all pods of a part, which makes each again by itself."""
    # Spare hosts may have taken the ranks of as many others.
    failed = job.spares if part.role is Role.HOST else 0
    limits = {"backoffLimitPerIndex": job.max_restarts, "maxFailedIndexes": failed}
    return _spec(part.pods, limits, template(job, part, COMPLETION_INDEX))


def of_one_pod(job: KubernetesJob, part: Part, index_field: str) -> dict[str, Any]:
    """A Job of one pod in a JobSet, which makes a failed Job again, or else lets the Job make its pod again."""
    limits = {"backoffLimit": 0 if job.restart_job else job.max_restarts}
    return _spec(1, limits, template(job, part, index_field))


def _spec(count: int, limits: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        **limits,
        # A pod that is still ending has its volume, and its id.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": pod_failure_policy(),
        "template": pod,
    }
