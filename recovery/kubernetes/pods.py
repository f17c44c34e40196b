"""The pods of a job, the same for all kinds: one scheduler, hosts with a launcher each, parameter servers. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from recovery.kubernetes import quantities
from recovery.kubernetes.environment import INDEX, NOTICE_FILE, Role, environment, literal
from recovery.kubernetes.exit_codes import CONTAINER
from recovery.kubernetes.job import KILLED_AFTER_S, STATE, KubernetesJob, Storage
from recovery.kubernetes.volumes import mounts, volumes

INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
_EVICTED_AFTER_S = 60
"""How long a pod stays on a node that does not answer; Kubernetes' own 300 s would be most of a recovery."""
_NOTICED_WITHIN_S = 3
"""The launcher looks at the file every second: it has seen it before SIGTERM comes, which then changes nothing."""
_WAIT = """\
import socket, sys, time

address, until = ("{host}", {port}), time.monotonic() + {wait_s}
while True:
    try:
        socket.create_connection(address, timeout=5).close()
        break
    except OSError as error:
        if time.monotonic() > until:
            sys.exit(f"{host}:{port} does not answer: {{error}}")
        time.sleep(1)"""
_NOTE = """\
import pathlib, socket, time

try:
    socket.create_connection(("{host}", {port}), timeout=5).close()
except OSError:
    time.sleep({seconds})  # training is over; the script may not be
pathlib.Path("{file}").write_text("{seconds}")
time.sleep({noticed})"""


class Part(NamedTuple):
    """Pods of one role."""

    role: Role
    pods: int
    first: int = 0
    """The number of the first, where it has a claim of its own."""
    own_claim: bool = False

    @property
    def name(self) -> str:
        """What it is called in the job."""
        return f"{self.role.value}-{self.first}" if self.own_claim else self.role.value


def parts(job: KubernetesJob) -> list[Part]:
    """All pods, the scheduler first. The last hosts are the spare ones."""
    hosts = [Part(Role.HOST, job.hosts)]
    if job.storage is Storage.CLAIMS:
        hosts = [Part(Role.HOST, 1, first=index, own_claim=True) for index in range(job.hosts)]
    servers = [Part(Role.SERVER, job.servers)] if job.servers else []
    return [Part(Role.SCHEDULER, 1), *hosts, *servers]


def labels(job: KubernetesJob, role: Role) -> dict[str, str]:
    """By which the pods of a role are found."""
    return {INSTANCE: job.name, COMPONENT: role.value}


def template(job: KubernetesJob, part: Part, index_field: str) -> dict[str, Any]:
    """The pods of a part.

    Args:
        job: whose.
        part: which of it.
        index_field: the field of a pod that holds its number.
    """
    index: dict[str, Any] = {"valueFrom": {"fieldRef": {"fieldPath": index_field}}}
    if part.own_claim:
        index = {"value": str(part.first)}
    container = {
        "name": CONTAINER,
        "image": job.image,
        "command": _command(job, part.role),
        "env": environment(job, part.role, index),
        **_of_container(job, part.role),
    }
    spec = {
        "restartPolicy": "Never",
        # Variables of Services are called like ours: that of one named ms-sched would be MS_SCHED_PORT.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": job.grace_s + KILLED_AFTER_S,
        **_placement(job, part.role),
        **_init(job, part.role),
        "containers": [container],
        "volumes": volumes(job, part.role, part.first if part.own_claim else None),
    }
    return {"metadata": {"labels": labels(job, part.role)}, "spec": spec}


def service(job: KubernetesJob) -> dict[str, Any]:
    """What stays while the scheduler's pod does not: a launcher looks the name up once, so it is no headless one."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.scheduler},
        "spec": {
            "selector": labels(job, Role.SCHEDULER),
            "publishNotReadyAddresses": True,
            "ports": [{"name": "scheduler", "port": job.port, "targetPort": job.port}],
        },
    }


def _command(job: KubernetesJob, role: Role) -> list[str]:
    if role is Role.SCHEDULER:
        return ["recovery", "scheduler"]
    task = [*(["-m"] if job.module else []), *(literal(word) for word in job.task)]
    if role is not Role.HOST:
        return ["python3", *task]
    return [
        *("recovery", "run"),
        f"--nnodes={job.nnodes}",
        f"--nproc_per_node={job.nproc_per_node}",
        f"--node_rank=$({INDEX})",
        f"--rdzv_endpoint={job.scheduler}:{job.port}",
        f"--rdzv_conf=timeout={job.wait_s}",
        *([f"--standbys={job.standbys}"] if job.standbys else []),
        *([f"--spares={job.spares}"] if job.spares else []),
        f"--log_dir={STATE}/logs",
        *task,
    ]


def _of_container(job: KubernetesJob, role: Role) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if job.env_from_secret:
        found["envFrom"] = [{"secretRef": {"name": name}} for name in job.env_from_secret]
    if role is Role.SCHEDULER:
        found["ports"] = [{"name": "scheduler", "containerPort": job.port}]
        found |= _probes(job)
        # All pods of a job that is deleted are asked at once: the hosts need it until they have saved.
        found["lifecycle"] = {"preStop": {"sleep": {"seconds": job.grace_s}}}
    elif role is Role.HOST:
        note = _NOTE.format(
            host=job.scheduler,
            port=job.port,
            file=NOTICE_FILE,
            seconds=job.grace_s,
            noticed=_NOTICED_WITHIN_S,
        )
        found["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", note]}}}
    amounts = quantities.of_pod(job, role)
    if amounts:
        found["resources"] = {"requests": amounts, "limits": amounts}
    return {**found, "volumeMounts": mounts(job, role)}


def _probes(job: KubernetesJob) -> dict[str, Any]:
    asked: dict[str, Any] = {"httpGet": {"path": "/healthz", "port": job.port}}
    if job.has_tls:
        # It answers only who presents a certificate.
        asked = {"tcpSocket": {"port": job.port}}
    return {
        "startupProbe": {**asked, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**asked, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {**asked, "periodSeconds": 5},
    }


def _init(job: KubernetesJob, role: Role) -> dict[str, Any]:
    """A name that is not known yet would end the launcher with an exit code that asks for no further start."""
    if role is Role.SCHEDULER:
        return {}
    code = _WAIT.format(host=job.scheduler, port=job.port, wait_s=job.wait_s)
    wait = {"name": "wait-for-scheduler", "image": job.image, "command": ["python3", "-c", code]}
    return {"initContainers": [wait]}


def _placement(job: KubernetesJob, role: Role) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _EVICTED_AFTER_S,
            }
            for state in ("not-ready", "unreachable")
        ]
    }
    if role is Role.HOST:
        found["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {INSTANCE: job.name}},
            }
        ]
        if job.node_selector:
            found["nodeSelector"] = dict(job.node_selector)
        if job.pod_group:
            found["schedulingGroup"] = {"podGroupName": job.name}
    if job.run_as is not None:
        found["securityContext"] = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), job.run_as)
    if job.pull_secret:
        found["imagePullSecrets"] = [{"name": job.pull_secret}]
    return found
