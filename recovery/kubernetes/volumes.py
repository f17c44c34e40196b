"""Where pods keep what must outlive them: volumes, mounts, and the claims behind them. Pure."""

from __future__ import annotations

from typing import Any

from recovery.kubernetes import tls_files
from recovery.kubernetes.environment import Role
from recovery.kubernetes.job import CHECKPOINTS, STATE, KubernetesJob, Storage

_STATE, _SHM, _CHECKPOINTS = "state", "shm", "checkpoints"


def host_claim(job: KubernetesJob, index: int) -> str:
    """The name of a host's own."""
    return f"{job.name}-host-{index}"


def claims(job: KubernetesJob) -> list[dict[str, Any]]:
    """The claims that the job needs and that are not there already, the scheduler's first."""
    found = [_claim(job, job.scheduler, job.access_mode.value)]
    if job.storage is Storage.CLAIMS:
        found += [_claim(job, host_claim(job, index), job.access_mode.value) for index in range(job.hosts)]
    if job.storage is Storage.SHARED and not job.claim:
        found.append(_claim(job, job.checkpoint_claim, "ReadWriteMany"))
    return found


def volumes(job: KubernetesJob, role: Role, index: int | None) -> list[dict[str, Any]]:
    """Those of a pod.

    Args:
        job: whose.
        role: of the pod.
        index: of a host that has a claim of its own; None: of no such host.
    """
    tls = tls_files.volumes(job)
    if role is Role.SCHEDULER:
        return [{"name": _STATE, "persistentVolumeClaim": {"claimName": job.scheduler}}, *tls]
    state: dict[str, Any] = {"emptyDir": {}}
    if index is not None:
        state = {"persistentVolumeClaim": {"claimName": host_claim(job, index)}}
    shm = {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": job.shm}}
    found = [{"name": _STATE, **state}, shm]
    if job.storage is Storage.SHARED:
        claim = {"claimName": job.checkpoint_claim}
        found.append({"name": _CHECKPOINTS, "persistentVolumeClaim": claim})
    return [*found, *tls]


def mounts(job: KubernetesJob, role: Role) -> list[dict[str, Any]]:
    """Where the container of a pod finds them."""
    found = [{"name": _STATE, "mountPath": STATE}]
    if role is not Role.SCHEDULER:
        found.append({"name": _SHM, "mountPath": "/dev/shm"})  # noqa: S108 - where it is
        if job.storage is Storage.SHARED:
            found.append({"name": _CHECKPOINTS, "mountPath": CHECKPOINTS})
    return [*found, *tls_files.mounts(job)]


def _claim(job: KubernetesJob, name: str, mode: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": [mode],
        "resources": {"requests": {"storage": job.storage_size}},
    }
    if job.storage_class:
        spec["storageClassName"] = job.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
