"""What cannot work is refused, with the way out: what several flags say together, and the environment of each pod. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from recovery.config import load
from recovery.config.table import BY_NAME
from recovery.errors import SettingError
from recovery.kubernetes.environment import INDEX, Role, environment, ours, resolved
from recovery.kubernetes.job import Kind, KubernetesJob, Storage
from recovery.kubernetes.pods import parts
from recovery.kubernetes.quantities import thousandths
from recovery.kubernetes.tls_files import VARIABLES

_NAME_MAX = 63
_DRAWN = "-abcde"
"""What Kubernetes adds to the name of a pod."""
_WORKERS_MAX = 65_535
_RESTART_JOB_MAX = 1_024
"""Replicas of one ReplicatedJob with RestartJob: JobSet notes the restarts of each in a list of so many."""
_BYTES_MAX = 262_144 - 4_096
"""Of an object in JSON: `kubectl apply` notes it in an annotation, and so many bytes are the most of all annotations together."""
_SECRET = re.compile(r"(\A|_)(TOKEN|SECRET|PASSWORD|PASSWD|ACCESS_KEY|API_KEY|SECRET_KEY)\Z", re.IGNORECASE)
_INSTEAD = {
    "MS_JOB_TOKEN": "Make a Secret, and name it by --token-secret.",
    "MS_STOP_GRACE": "Give --grace.",
    "MS_TOPO_TIMEOUT": "Give --wait.",
    "MS_CHECKPOINT_STORE": "Give --object-storage.",
    "MS_SCHED_PORT": "Give --port.",
    "MS_STANDBY_NUM": "Give --spares or --standbys.",
    "MS_SERVER_NUM": "Give --servers.",
}


def check(job: KubernetesJob) -> None:
    """Refuse what cannot work.

    Raises:
        SettingError: the first thing that is found.
    """
    _look_at_task(job)
    _look_at_env(job)
    _look_at_tls(job)
    _look_at_counts(job)
    _look_at_storage(job)
    _look_at_spares(job)
    _look_at_kind(job)
    longest = max(_names(job), key=len)
    if (over := len(longest) - _NAME_MAX) > 0:
        rule = f"makes the name {longest}, which has {len(longest)} characters, and {_NAME_MAX} are the most"
        most = max(1, len(job.name) - over)
        raise _range("--name", job.name, rule, f"Give one of at most {most} characters.")
    for role in Role:
        fields = {INDEX: "0", "MS_WORKER_IP": "10.0.0.1", "MS_JOB_TOKEN": "a" * 64}
        found = resolved(environment(job, role, {"value": "0"}), fields)
        if role is Role.SCHEDULER:
            found["MS_ROLE"] = "MS_SCHED"
        elif role is Role.HOST:
            found |= {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": "0", "MS_WORKER_NUM": str(job.workers)}
            found |= {"MS_SCHED_HOST": job.scheduler, "MS_SCHED_PORT": str(job.port)}
        load(found)


def check_size(job: KubernetesJob, one: Mapping[str, Any]) -> None:
    """Refuse an object that is too large: of a JobSet in which each host has a volume, and so a ReplicatedJob, of its own.

    Raises:
        SettingError: it is.
    """
    size = len(json.dumps(one, separators=(",", ":")).encode())
    if size > _BYTES_MAX:
        rule = f"makes a {one['kind']} of {size} bytes, and kubectl apply can note {_BYTES_MAX}"
        raise _range("--nnodes", job.nnodes, rule, "Give --storage=shared, or --object-storage=URL.")


def _look_at_task(job: KubernetesJob) -> None:
    for word in job.task:
        if not word.isprintable():
            raise _range(
                "script", word, "is to be words that print", "Write line ends into a file of the image."
            )
    if job.task[0].startswith("-"):
        rule = "is a flag, and the script comes first behind --"
        raise _range("script", job.task[0], rule, "Write, for example: -- train.py --epochs=10.")


def _look_at_env(job: KubernetesJob) -> None:
    names = [name for name, _ in job.env]
    for name, value in job.env:
        shown = f"{name}={value}"
        if name in ours():
            instead = _INSTEAD.get(name, "Leave it out.")
            raise _conflict("--env", name, "is set for each pod by this command", instead)
        if names.count(name) > 1:
            raise _conflict("--env", shown, f"{name} is given more than once", "Give it once.")
        if _SECRET.search(name):
            rule = "is called like a secret, which would stand in the YAML for all to read"
            raise _conflict("--env", name, rule, "Put it into a Secret, and name that by --env-from-secret.")
        if name.startswith("MS_") and name not in BY_NAME:
            like = "".join(f" Did you mean {found}?" for found in get_close_matches(name, BY_NAME, n=1))
            raise _range("--env", shown, "no variable has this name", f"`recovery env` lists all.{like}")


def _look_at_tls(job: KubernetesJob) -> None:
    if not job.tls_secret:
        return
    for name, _ in job.env:
        if name in VARIABLES:
            raise _conflict("--env", name, "is set by --tls-secret", "Leave one of the two out.")
    if job.run_as is not None:
        rule = (
            "lets its group read every file of a Secret, and keys and passwords are refused where others can"
        )
        raise _conflict(
            "--run-as",
            job.run_as,
            rule,
            "Leave it out, or put the files into the image, and name them by --env.",
        )


def _look_at_counts(job: KubernetesJob) -> None:
    if job.workers > _WORKERS_MAX:
        rule = f"with --nproc-per-node={job.nproc_per_node} are {job.workers} workers, and {_WORKERS_MAX} are the most"
        raise _range("--nnodes", job.nnodes, rule, "Lower one of the two.")
    if job.memory and thousandths(job.shm) >= thousandths(job.memory):
        rule = f"counts as memory of the host, which is --memory={job.memory}"
        raise _conflict("--shm", job.shm, rule, "Lower it, or raise --memory.")


def _look_at_storage(job: KubernetesJob) -> None:
    if job.storage is Storage.CLAIMS and job.kind is not Kind.JOBSET:
        rule = f"is a volume for each host, and with --kind={job.kind.value} the pods of all hosts share their volumes"
        raise _conflict(
            "--storage", "claims", rule, "Give --storage=shared, --object-storage=URL, or --kind=jobset."
        )
    if job.storage is Storage.OBJECT and not job.object_storage:
        raise SettingError(
            "SETTING_MISSING",
            field="--object-storage",
            state="missing",
            value="",
            rule="with --storage=object checkpoints end with their pod, unless they are sent somewhere",
            next_step="Give --object-storage=s3://BUCKET/PREFIX, or another --storage.",
        )
    if job.claim and job.storage is not Storage.SHARED:
        rule = f"is of --storage=shared, and --storage={job.storage.value} is given"
        raise _conflict("--claim", job.claim, rule, "Leave one of the two out.")


def _look_at_spares(job: KubernetesJob) -> None:
    if job.spares and job.storage is Storage.CLAIMS and not job.object_storage:
        rule = "takes ranks only with their checkpoints, and those lie on a volume that a spare host cannot mount"
        raise _conflict("--spares", job.spares, rule, "Give --storage=shared, or --object-storage=URL.")


def _look_at_kind(job: KubernetesJob) -> None:
    if not job.restart_job and job.kind is not Kind.JOBSET:
        rule = f"is of --kind=jobset, and --kind={job.kind.value} is given"
        raise _conflict("--no-restart-job", True, rule, "Leave it out.")
    if job.cluster_runtime and job.kind is not Kind.TRAINJOB:
        rule = f"is of --kind=trainjob, and --kind={job.kind.value} is given"
        raise _conflict("--cluster-runtime", True, rule, "Leave it out.")
    if job.pod_group and job.kind is Kind.TRAINJOB:
        rule = "makes a PodGroup of Kubernetes, and Kubeflow Trainer makes its own (podGroupPolicy of the runtime)"
        raise _conflict("--pod-group", True, rule, "Leave it out, and add podGroupPolicy to the runtime.")
    most = max(part.pods for part in parts(job))
    if job.kind is Kind.JOBSET and job.restart_job and most > _RESTART_JOB_MAX:
        rule = f"makes {most} Jobs of one kind, and a JobSet with RestartJob has at most {_RESTART_JOB_MAX}"
        field, value = ("--spares", job.spares) if job.spares > job.nnodes else ("--nnodes", job.nnodes)
        raise _range(field, value, rule, "Give --no-restart-job, or --kind=job.")


def _names(job: KubernetesJob) -> Iterator[str]:
    """The longest names that Kubernetes makes of the job's: those of its pods."""
    for part in parts(job):
        last, name = part.pods - 1, f"{job.name}-{part.name}"
        if job.kind is Kind.JOBSET:
            yield f"{name}-{last}-0{_DRAWN}"
        elif job.kind is Kind.TRAINJOB:
            yield f"{name}-0-{last}{_DRAWN}"
        else:
            yield f"{name}-{last}{_DRAWN}"


def _range(field: str, value: object, rule: str, next_step: str) -> SettingError:
    return SettingError("SETTING_RANGE", field=field, value=value, rule=rule, next_step=next_step)


def _conflict(field: str, value: object, rule: str, next_step: str) -> SettingError:
    return SettingError("SETTING_CONFLICT", field=field, value=value, rule=rule, next_step=next_step)
