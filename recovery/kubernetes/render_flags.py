"""The command line of `recovery k8s render`: one row a flag, and from what was typed to a `KubernetesJob`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from recovery.errors import SettingError
from recovery.kubernetes.job import AccessMode, Kind, KubernetesJob, Storage
from recovery.launch import flag_values as values

_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_LABEL_MAX, _SUBDOMAIN_MAX = 63, 253
_QUANTITY = re.compile(r"(\d{1,15})(\.\d{1,3})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESOURCE = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+\Z")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?\Z")
Reader = Callable[[str, str], Any]


class Flag(NamedTuple):
    """One flag that takes a value."""

    read: Reader
    help: str
    field: str = ""
    """Of `KubernetesJob`, where it is not called as the flag."""
    repeats: bool = False


def _name(flag: str, text: str) -> str:
    if _LABEL.match(text) is None or len(text) > _LABEL_MAX:
        rule = "a DNS label: up to 63 lower-case letters, digits and hyphens, with a letter first and no hyphen last"
        raise values.refuse(flag, text, rule, "resnet")
    return text


def _subdomain(flag: str, text: str) -> str:
    if _SUBDOMAIN.match(text) is None or len(text) > _SUBDOMAIN_MAX:
        rule = "the name of an object: lower-case letters, digits, hyphens and dots"
        raise values.refuse(flag, text, rule, "resnet-token")
    return text


def _printable(flag: str, text: str) -> str:
    if not text or not text.isprintable() or " " in text:
        raise values.refuse(flag, text, "a text that prints, without blanks", "registry.example/resnet:1")
    return text


def quantity(flag: str, text: str) -> str:
    """Read an amount as Kubernetes writes it."""
    found = _QUANTITY.match(text)
    if found is None or not int(found[1] + (found[2] or ".0")[1:]):
        raise values.refuse(flag, text, "a quantity of Kubernetes greater than 0", "500m, 8 or 32Gi")
    return text


def _resource(flag: str, text: str) -> str:
    if _RESOURCE.match(text) is None:
        raise values.refuse(flag, text, "the name of an extended resource", "nvidia.com/gpu")
    return text


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or _VARIABLE.match(name) is None:
        raise values.refuse(
            flag, text, "NAME=VALUE, with a name of letters, digits and _", "OMP_NUM_THREADS=4"
        )
    if not value.isprintable():
        raise values.refuse(flag, text, "NAME=VALUE, with a value that prints", "OMP_NUM_THREADS=4")
    return name, value


def _selector(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    fits = len(name.rpartition("/")[2]) <= _LABEL_MAX and len(value) <= _LABEL_MAX
    if not (equals and fits and _LABEL_KEY.match(name) and _LABEL_VALUE.match(value)):
        raise values.refuse(
            flag, text, "LABEL=VALUE, as nodes are labelled", "node.kubernetes.io/instance-type=a3"
        )
    return name, value


def _count(minimum: int, maximum: int, example: str) -> Reader:
    return values.number(minimum, maximum, f"from {minimum} to {maximum}", example)


_PORT_MAX, _UID_MAX, _DAY_S = 65_535, 2**31 - 1, 86_400
FLAGS = {
    "name": Flag(_name, "name of the job; its objects are called after it"),
    "image": Flag(_printable, "container image: Python, this package and the script"),
    "kind": Flag(values.one_of(Kind, "jobset"), "jobset (default), job (Indexed Jobs) or trainjob (Kubeflow Trainer 2)"),
    "namespace": Flag(_name, "of all objects; without it that of whoever applies them"),
    "nnodes": Flag(_count(1, 65_535, "2"), "hosts: pods with a launcher each (1)"),
    "nproc_per_node": Flag(_count(1, 1_024, "8"), "workers of a host (1)"),
    "standbys": Flag(_count(0, 1_000, "1"), "processes of each host that wait beside its workers (0)"),
    "spares": Flag(_count(0, 65_535, "2"), "hosts beyond --nnodes that wait, and take the ranks of one that is lost (0)"),
    "servers": Flag(_count(0, 1_024, "1"), "parameter servers, each in a pod of its own (0)"),
    "port": Flag(_count(1_024, _PORT_MAX, "8118"), "of the scheduler (8118)"),
    "wait": Flag(
        _count(1, 31_536_000, "1800"), "seconds to wait for all workers, at the start and after a loss (1800)", "wait_s"
    ),
    "cpus": Flag(quantity, "processors of a host, as 8 or 500m"),
    "memory": Flag(quantity, "memory of a host, as 32Gi"),
    "gpus": Flag(_count(0, 1_024, "8"), "accelerators of a host (0)"),
    "gpu_resource": Flag(_resource, "what they are called (nvidia.com/gpu)"),
    "shm": Flag(quantity, "size of /dev/shm (2Gi); it counts as memory"),
    "node_selector": Flag(_selector, "LABEL=VALUE of the nodes that may run hosts; may be repeated", repeats=True),
    "run_as": Flag(_count(1, _UID_MAX, "1000"), "user and group id of all processes; without it the image's"),
    "pull_secret": Flag(_subdomain, "Secret with which the image is pulled"),
    "grace": Flag(
        _count(1, _DAY_S, "60"),
        "seconds that a pod's processes have to save and end (60); Kubernetes kills the pod 10 s later",
        "grace_s",
    ),
    "max_restarts": Flag(_count(0, 1_000, "6"), "failures of one pod after which the job ends (6)"),
    "storage": Flag(
        values.one_of(Storage, "shared"),
        "where hosts keep checkpoints: claims (a volume a host; jobset only, and its default), shared (one file system) or object",
    ),
    "storage_size": Flag(quantity, "of each volume that is claimed (20Gi)"),
    "storage_class": Flag(_subdomain, "of the volumes; without it the cluster's default"),
    "access_mode": Flag(values.one_of(AccessMode, "ReadWriteOnce"), "of volumes of one pod: ReadWriteOncePod (default) or ReadWriteOnce"),
    "claim": Flag(_subdomain, "PersistentVolumeClaim of --storage=shared that is there already; without it one is made"),
    "object_storage": Flag(values.as_typed, "URL for checkpoints (MS_CHECKPOINT_STORE)"),
    "token_secret": Flag(_subdomain, "Secret with the job's token under the key `token` (NAME-token)"),
    "tls_secret": Flag(_subdomain, "Secret with the files of `recovery certs init`: TLS between all processes"),
    "env": Flag(_pair, "NAME=VALUE of all processes; may be repeated", repeats=True),
    "env_from_secret": Flag(_subdomain, "Secret whose keys are variables of all processes; may be repeated", repeats=True),
}  # fmt: skip
SWITCHES = {
    "module": "the task is a module, as of python -m",
    "pod_group": "a PodGroup (Kubernetes 1.37) of all hosts: they are placed together or not at all",
    "cluster_runtime": "with --kind=trainjob: a ClusterTrainingRuntime, which TrainJobs of all namespaces may use; who applies it needs the right to make one",
    "no_restart_job": "for a JobSet without its feature gate RestartJob: each Job makes its pod again, with a back-off",
}


def read(given: Mapping[str, Any], task: Sequence[str]) -> KubernetesJob:
    """Read what was typed.

    Args:
        given: by flag with underscores, as text, a list of texts where it repeats, or True; only what was typed.
        task: the script or module, with its arguments.

    Raises:
        SettingError: a flag is missing, or a value is not of its kind.
    """
    fields: dict[str, Any] = {}
    for name, flag in FLAGS.items():
        if name in given:
            value, typed = given[name], _typed(name)
            read_as = (
                tuple(flag.read(typed, one) for one in value) if flag.repeats else flag.read(typed, value)
            )
            fields[flag.field or name] = read_as
    for name, example in (("name", "resnet"), ("image", "registry.example/resnet:1")):
        if name not in fields:
            raise _missing(name, "every job needs it", f"Give, for example, --{name}={example}.")
    if not task:
        example = "recovery k8s render --name=resnet --image=IMAGE -- train.py --epochs=10"
        raise _missing("script", "it comes behind --, with its arguments", f"Write, for example: {example}.")
    fields.setdefault("token_secret", f"{fields['name']}-token")
    return KubernetesJob(
        task=tuple(task),
        module=bool(given.get("module")),
        pod_group=bool(given.get("pod_group")),
        cluster_runtime=bool(given.get("cluster_runtime")),
        restart_job=not given.get("no_restart_job"),
        storage=fields.pop("storage", None) or _storage(fields),
        **fields,
    )


def _storage(fields: Mapping[str, Any]) -> Storage:
    """Where checkpoints lie, where nobody has said it.

    Raises:
        SettingError: the kind cannot give each host a volume of its own, and nothing else was named.
    """
    if fields.get("claim"):
        return Storage.SHARED
    if fields.get("object_storage"):
        return Storage.OBJECT
    kind = fields.get("kind", Kind.JOBSET)
    if kind is Kind.JOBSET:
        return Storage.CLAIMS
    raise _missing(
        "storage",
        f"pods of one Job share their volumes, so --kind={kind.value} has none for each host, and without one checkpoints end with their pod",
        "Give --storage=shared (a file system that all pods mount), --object-storage=URL, or --kind=jobset.",
    )


def _typed(name: str) -> str:
    return name.replace("_", "-")


def _missing(name: str, rule: str, next_step: str) -> SettingError:
    field = f"--{_typed(name)}" if name in FLAGS else name
    return SettingError(
        "SETTING_MISSING", field=field, state="missing", value="", rule=rule, next_step=next_step
    )
