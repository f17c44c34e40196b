"""Before the scheduler serves: take the lock, read what is stored, begin the next incarnation."""

from __future__ import annotations

import contextlib
import resource
import uuid

from recovery.config import Settings
from recovery.core.cluster import Cluster, new_job, next_life
from recovery.errors import JobMismatchError
from recovery.store.repository import SchedulerState, SchedulerStore

_DESCRIPTORS_MAX = 1_048_576
"""Linux allows no process more unless fs.nr_open was changed; a hard limit of "unlimited" means this many."""


def raise_descriptor_limit() -> None:
    """Let this process hold as many connections as it is allowed to: usual shells leave 1,024 of them.

    The soft limit protects programs that wait by select(2); this one does not. A limit that may not be raised is left as it is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_store(settings: Settings) -> SchedulerStore | None:
    """Open the store of the recovery path; None when recovery is off and nothing is persisted.

    Raises:
        StoreError, RecoveryPathError: as the store finds it.
    """
    if settings.recovery_path is None:
        return None
    return SchedulerStore.open(settings.recovery_path, accept_without_wal=settings.store_without_wal)


def load_cluster(store: SchedulerStore | None, settings: Settings) -> Cluster:
    """Build the cluster machine from what is stored.

    Raises:
        JobMismatchError: the stored job has another world size.
        StoreError: the store cannot be read.
    """
    state = store.load() if store is not None else None
    if state is None or state.job is None:
        return Cluster(new_job(uuid.uuid4().hex, settings.rules), settings.rules)
    _check_same_job(state, settings)
    cluster = Cluster(next_life(state.job), settings.rules)
    cluster.restore(state.nodes, state.generations, state.checkpoints)
    return cluster


def _check_same_job(state: SchedulerState, settings: Settings) -> None:
    assert state.job is not None, "checked by the caller"
    for field, stored, given in (
        ("MS_WORKER_NUM", state.job.worker_count, settings.rules.worker_count),
        ("MS_SERVER_NUM", state.job.server_count, settings.rules.server_count),
    ):
        if stored != given:
            raise JobMismatchError(
                reason=f"{field}={given}, but the job stored in {settings.recovery_path} has {stored}. "
                f"Set {field}={stored} to go on with it, or choose another MS_RECOVERY_PATH for a new job."
            )
