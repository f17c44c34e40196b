"""A job for Kubeflow Trainer 2 (trainer.kubeflow.org/v1alpha1): a runtime, which holds the layout, and the TrainJob that uses it. Pure."""

from __future__ import annotations

from typing import Any

from recovery.kubernetes.environment import Role
from recovery.kubernetes.indexed_jobs import by_index
from recovery.kubernetes.job import KubernetesJob
from recovery.kubernetes.jobset import policies
from recovery.kubernetes.pods import Part, parts

_API = "trainer.kubeflow.org/v1alpha1"
_ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
"""By this label Trainer knows which pods are the nodes of the training."""


def train_job(job: KubernetesJob) -> list[dict[str, Any]]:
    """The runtime and the TrainJob. Trainer makes one Job of all nodes, so each pod is made again by that Job, by its number."""
    set_spec = {
        **policies(job, restart_job=False),
        "replicatedJobs": [_replicated(job, part) for part in parts(job)],
    }
    kind = "ClusterTrainingRuntime" if job.cluster_runtime else "TrainingRuntime"
    runtime = {
        "apiVersion": _API,
        "kind": kind,
        "metadata": {"name": job.name},
        # Not `torch`: what Trainer would say to torchrun, the launcher is told by its command.
        "spec": {"mlPolicy": {"numNodes": job.hosts}, "template": {"spec": set_spec}},
    }
    reference = {"apiGroup": _API.partition("/")[0], "kind": kind, "name": job.name}
    return [
        runtime,
        {
            "apiVersion": _API,
            "kind": "TrainJob",
            "metadata": {"name": job.name},
            "spec": {"runtimeRef": reference},
        },
    ]


def _replicated(job: KubernetesJob, part: Part) -> dict[str, Any]:
    template: dict[str, Any] = {"spec": by_index(job, part)}
    if part.role is Role.HOST:
        template = {"metadata": {"labels": {_ANCESTOR: "trainer"}}, **template}
    return {"name": part.name, "replicas": 1, "template": template}
