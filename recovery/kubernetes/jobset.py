"""A job as a JobSet (jobset.x-k8s.io/v1alpha2): each pod in a Job of its own, so that the JobSet can make that one again. Pure."""

from __future__ import annotations

from typing import Any

from recovery.kubernetes.environment import Role
from recovery.kubernetes.indexed_jobs import of_one_pod
from recovery.kubernetes.job import KubernetesJob
from recovery.kubernetes.pods import parts

JOB_INDEX = "metadata.annotations['jobset.sigs.k8s.io/job-index']"
"""The number of the Job that a pod belongs to: kept when the Job is made again."""


def job_set(job: KubernetesJob) -> dict[str, Any]:
    """The JobSet."""
    jobs = [
        {"name": part.name, "replicas": part.pods, "template": {"spec": of_one_pod(job, part, JOB_INDEX)}}
        for part in parts(job)
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {**policies(job, restart_job=job.restart_job), "replicatedJobs": jobs},
    }


def policies(job: KubernetesJob, *, restart_job: bool) -> dict[str, Any]:
    """When the set has ended, and what follows the failure of one of its Jobs.

    Args:
        job: whose.
        restart_job: whether the set makes a failed Job again. No: each Job has tried by itself, and has given up.
    """
    rules = [{"name": "doNotRestart", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
    if restart_job:
        rules.append({"name": "restartThatPod", "action": "RestartJob"})
    else:
        rules = [{"name": "givenUp", "action": "FailJobSet"}]
    pods = sum(part.pods for part in parts(job))
    # The scheduler may end before the last script does. Where a spare may have a host's ranks, that host need not come back at all.
    decides = Role.SCHEDULER if job.spares else Role.HOST
    return {
        "successPolicy": {
            "operator": "All",
            "targetReplicatedJobs": [part.name for part in parts(job) if part.role is decides],
        },
        "failurePolicy": {
            "maxRestarts": job.max_restarts * pods if restart_job else 0,
            # Never InPlaceRestart, which restarts the pods that are well too.
            "restartStrategy": "Recreate",
            "rules": rules,
        },
    }
