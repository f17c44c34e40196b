"""A job as one file of Kubernetes objects: the same arguments give the same text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recovery.kubernetes.checks import check, check_size
from recovery.kubernetes.environment import Role
from recovery.kubernetes.indexed_jobs import indexed_jobs
from recovery.kubernetes.job import CHECKPOINTS, KILLED_AFTER_S, Kind, KubernetesJob, Storage
from recovery.kubernetes.jobset import job_set
from recovery.kubernetes.pods import parts, service
from recovery.kubernetes.tls_files import FILES, config_map
from recovery.kubernetes.train_job import train_job
from recovery.kubernetes.volumes import claims
from recovery.kubernetes.yaml_text import document


def render(job: KubernetesJob, command: Sequence[str]) -> str:
    """The file.

    Args:
        job: what is to be rendered.
        command: the lines that say how it was made.

    Raises:
        SettingError: it cannot work.
    """
    check(job)
    head = [*command, *_notes(job)]
    written = [_named(job, one) for one in objects(job)]
    for one in written:
        check_size(job, one)
    comments = "".join(f"# {line}".rstrip() + "\n" for line in head)
    return comments + "".join(f"---\n{document(one)}" for one in written)


def objects(job: KubernetesJob) -> list[dict[str, Any]]:
    """The objects, in the order in which they are made: what pods name comes before them."""
    before = [*claims(job), service(job)]
    before += [config_map(job)] if job.tls_secret else []
    before += [_pod_group(job)] if job.pod_group else []
    match job.kind:
        case Kind.JOBSET:
            return [*before, job_set(job)]
        case Kind.JOB:
            return [*before, *indexed_jobs(job)]
        case Kind.TRAINJOB:
            return [*before, *train_job(job)]


def _named(job: KubernetesJob, one: dict[str, Any]) -> dict[str, Any]:
    """With its namespace, and the labels by which all of the job are found."""
    metadata = {**one["metadata"], "labels": {"app.kubernetes.io/instance": job.name}}
    if job.namespace and one["kind"] != "ClusterTrainingRuntime":
        metadata["namespace"] = job.namespace
    return {**one, "metadata": metadata}


def _pod_group(job: KubernetesJob) -> dict[str, Any]:
    pods = sum(part.pods for part in parts(job) if part.role is Role.HOST)
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": job.name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": pods}}},
    }


def _notes(job: KubernetesJob) -> list[str]:
    """What a person must know before it is applied."""
    needed = [f"Secret {job.token_secret} (key token)"]
    needed += [f"Secret {name}" for name in (*job.env_from_secret, job.pull_secret) if name]
    if job.tls_secret:
        needed.append(f"Secret {job.tls_secret} (keys {', '.join(FILES)})")
    if job.claim:
        needed.append(f"PersistentVolumeClaim {job.claim} (ReadWriteMany)")
    found = [f"needed beside it: {', '.join(needed)}"]
    if job.kind is Kind.JOBSET and job.restart_job:
        found.append(
            "needed of the cluster: JobSet 0.12 with its feature gate RestartJob (without it: --no-restart-job)"
        )
    if job.storage is Storage.OBJECT:
        found.append("what lies on a host ends with its pod; committed checkpoints are in object storage")
    else:
        found.append(
            f"the script saves below {CHECKPOINTS}; a claim that is deleted takes its checkpoints along"
        )
    found.append(
        f"grace: processes have {job.grace_s} s to save and end; Kubernetes kills the pod {KILLED_AFTER_S} s later"
    )
    return found
