"""What is to be rendered, in our own words. Pure."""

from __future__ import annotations

from enum import Enum

import msgspec

STATE = "/state"
"""Where each pod keeps what is its own: its recovery path, and its logs."""
RECOVERY_PATH = f"{STATE}/recovery"
"""Made by the first process, which so owns it: a volume's root belongs to root."""
CHECKPOINTS = f"{STATE}/checkpoints"
"""Where the script is to save."""
KILLED_AFTER_S = 10
"""Kubernetes kills a pod so much later than its launcher kills what has not ended: the launcher says by then what became of the job."""


class Kind(str, Enum):
    """Which objects carry the job."""

    JOBSET = "jobset"
    JOB = "job"
    TRAINJOB = "trainjob"


class Storage(str, Enum):
    """Where hosts keep their checkpoints."""

    CLAIMS = "claims"
    """On a volume for each host, which outlives its pod."""
    SHARED = "shared"
    """On one file system that all pods mount."""
    OBJECT = "object"
    """In object storage; what lies on the host ends with its pod."""


class AccessMode(str, Enum):
    """Of the volume of the scheduler, and of those of the hosts."""

    ONE_POD = "ReadWriteOncePod"
    ONE_NODE = "ReadWriteOnce"


class KubernetesJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    name: str
    image: str
    task: tuple[str, ...]
    """The script, or the module's name, with its arguments."""
    module: bool = False
    kind: Kind = Kind.JOBSET
    namespace: str = ""
    """Empty: that of whoever applies it."""

    nnodes: int = 1
    nproc_per_node: int = 1
    standbys: int = 0
    """Processes of each host that wait beside its workers."""
    spares: int = 0
    """Hosts beyond `nnodes` that wait."""
    servers: int = 0
    """Parameter servers, each in a pod of its own."""
    port: int = 8118
    wait_s: int = 1800
    """How long all workers are waited for, at the start and after a loss."""

    cpus: str = ""
    memory: str = ""
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    shm: str = "2Gi"
    node_selector: tuple[tuple[str, str], ...] = ()
    run_as: int | None = None
    pod_group: bool = False
    pull_secret: str = ""

    grace_s: int = 60
    """How long the launcher gives its processes when the pod is to go, the save of a last step included."""
    max_restarts: int = 6
    """Failures of one pod after which it is not made again."""
    cluster_runtime: bool = False
    """Is a TrainJob's runtime one that all namespaces may use?"""
    restart_job: bool = True
    """Does the JobSet make a failed Job again (its feature gate RestartJob)? Else each Job makes its own pod again, with a back-off."""

    storage: Storage = Storage.CLAIMS
    storage_size: str = "20Gi"
    storage_class: str = ""
    access_mode: AccessMode = AccessMode.ONE_POD
    claim: str = ""
    """Of the shared file system, where it is there already."""
    object_storage: str = ""

    env: tuple[tuple[str, str], ...] = ()
    env_from_secret: tuple[str, ...] = ()
    token_secret: str = ""
    tls_secret: str = ""
    """Empty: no TLS, or the image has its files."""

    @property
    def scheduler(self) -> str:
        """The name at which the scheduler is reached, whichever pod it is."""
        return f"{self.name}-scheduler"

    @property
    def checkpoint_claim(self) -> str:
        """Of the shared file system."""
        return self.claim or f"{self.name}-checkpoints"

    @property
    def hosts(self) -> int:
        """Pods with a launcher; the last ones are spare."""
        return self.nnodes + self.spares

    @property
    def workers(self) -> int:
        """Of all hosts."""
        return self.nnodes * self.nproc_per_node

    @property
    def has_tls(self) -> bool:
        """Do its processes speak TLS?"""
        return bool(self.tls_secret) or dict(self.env).get("MS_ENABLE_SSL") == "1"
