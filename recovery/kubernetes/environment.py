"""The variables of each kind of pod. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from recovery.kubernetes import tls_files
from recovery.kubernetes.job import RECOVERY_PATH, KubernetesJob, Storage

INDEX = "POD_INDEX"
"""Which host or server a pod is: as long as the job lasts, whatever the pod is called."""
NOTICE_FILE = "/dev/shm/preempted"  # noqa: S108 - of the pod alone
_STANDBYS_MAX = 65_535
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
Variables = list[dict[str, Any]]


class Role(str, Enum):
    """What a pod is; its value is part of names."""

    SCHEDULER = "scheduler"
    HOST = "host"
    SERVER = "server"


def literal(text: str) -> str:
    """A text as Kubernetes must be given it, so that it replaces nothing in it."""
    return text.replace("$", "$$")


def environment(job: KubernetesJob, role: Role, index: Mapping[str, Any]) -> Variables:
    """The variables of a pod's container, in an order in which each names only earlier ones.

    Args:
        job: whose.
        role: of the pod.
        index: where its number comes from: `value` or `valueFrom`.
    """
    variables: Variables = []
    if role is not Role.SCHEDULER:
        variables.append({"name": INDEX, **index})
        variables.append({"name": "MS_WORKER_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    variables += [{"name": name, "value": value} for name, value in _values(job, role).items()]
    token = {"secretKeyRef": {"name": job.token_secret, "key": "token"}}
    variables.append({"name": "MS_JOB_TOKEN", "valueFrom": token})
    return variables + [{"name": name, "value": literal(value)} for name, value in job.env]


def ours() -> frozenset[str]:
    """What a pod is given by this package, and nobody else sets."""
    most = KubernetesJob(
        name="a", image="a", task=("a",), spares=1, servers=1, object_storage="s3://a", storage=Storage.SHARED
    )
    named = {one["name"] for role in Role for one in environment(most, role, {"value": "0"})}
    # Whether a shared file system needs copies is the user's to say.
    return frozenset(named - {"MS_CHECKPOINT_COPIES", "PYTHONHASHSEED"})


def resolved(variables: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> dict[str, str]:
    """What a process finds, as the kubelet replaces `$(NAME)` in values.

    Args:
        variables: of a container.
        fields: what comes from elsewhere, by the name of the variable.
    """
    found: dict[str, str] = {}
    for one in variables:
        name = one["name"]
        found[name] = replaced(one["value"], found) if "value" in one else fields[name]
    return found


def replaced(text: str, variables: Mapping[str, str]) -> str:
    """A text with each `$(NAME)` replaced that is known; `$$` is a `$`."""
    parts = text.split("$$")
    return "$".join(_REFERENCE.sub(lambda found: variables.get(found[1], found[0]), part) for part in parts)


def _values(job: KubernetesJob, role: Role) -> dict[str, str]:
    typed = {name for name, _ in job.env}
    values = {"MS_ENABLE_RECOVERY": "1", "MS_RECOVERY_PATH": RECOVERY_PATH, **tls_files.variables(job)}
    if job.servers:
        values["MS_SERVER_NUM"] = str(job.servers)
    if job.storage is Storage.SHARED and "MS_CHECKPOINT_COPIES" not in typed:
        # It outlives every host.
        values["MS_CHECKPOINT_COPIES"] = "0"
    if role is Role.HOST:
        values |= {"MS_STOP_GRACE": str(job.grace_s), "MS_NOTICE_FILE": NOTICE_FILE}
    else:
        values |= dict(_of_a_job(job, role))
    if role is Role.SERVER:
        values |= {name: value for name, value in _of_a_server(job).items() if name not in typed}
    if role is not Role.SCHEDULER and job.object_storage:
        values["MS_CHECKPOINT_STORE"] = literal(job.object_storage)
    return values


def _of_a_job(job: KubernetesJob, role: Role) -> Iterator[tuple[str, str]]:
    """What a launcher would say to its processes."""
    yield "MS_WORKER_NUM", str(job.workers)
    # The scheduler listens at every address of its pod, and may be called by any name: the Service's address stays, the pod's does not.
    yield "MS_SCHED_HOST", "0.0.0.0" if role is Role.SCHEDULER else job.scheduler  # noqa: S104 - as said
    yield "MS_SCHED_PORT", str(job.port)
    yield "MS_TOPO_TIMEOUT", str(job.wait_s)
    waiting = job.spares * job.nproc_per_node + job.standbys * job.hosts
    if role is Role.SCHEDULER and waiting:
        # Whoever comes back to a rank that a spare has taken waits too, where it would be refused otherwise.
        yield "MS_STANDBY_NUM", str(min(waiting + job.workers, _STANDBYS_MAX))


def _of_a_server(job: KubernetesJob) -> dict[str, str]:
    """What a launcher would say to a parameter server, which is started without one."""
    return {
        "MS_ROLE": "MS_PSERVER",
        "MS_NODE_ID": f"{Role.SERVER.value}-$({INDEX})",
        "RANK_SIZE": str(job.workers),
        "WORLD_SIZE": str(job.workers),
        # Alone in its pod.
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": job.scheduler,
        "MASTER_PORT": str(job.port - 1 if job.port == _STANDBYS_MAX else job.port + 1),
        "PYTHONHASHSEED": "0",
    }
