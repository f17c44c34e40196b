"""Before the scheduler serves: take the lock, read what is stored, begin the next incarnation."""

from __future__ import annotations

import contextlib
import logging
import resource
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from recovery.config import Settings
from recovery.core.failed_work import FailedWork
from recovery.core.records import JobRecord, NodeRecord
from recovery.core.scheduler.job_states import new_job, next_incarnation
from recovery.core.scheduler.machine import SchedulerMachine
from recovery.errors import RecoveryError, RegistrationError, StoreBusyError, StoreLostError
from recovery.scheduler import store_rebuild
from recovery.store.archive import archived_jobs
from recovery.store.contents import SchedulerRecords
from recovery.store.reader import read_failed_work, read_notices
from recovery.store.repository import SchedulerStore

_logger = logging.getLogger("recovery.scheduler")
_DESCRIPTORS_MAX = 1_048_576
"""Linux allows no process more unless fs.nr_open was changed; a hard limit of "unlimited" means this many."""
_CORE_DUMP_FILTER = Path("/proc/self/coredump_filter")


def keep_memory_out_of_core_dumps() -> None:
    """Keep this process's memory, with the job's token and the channel's keys, out of its core dumps and those of all that it starts.

    For the scheduler only. It runs nobody's code but ours, so nobody misses its memory; a dump of a training process is its owner's tool.
    Unlike a limit on the size of dumps this also holds where the kernel hands them to a program, as systemd-coredump.
    """
    try:
        _CORE_DUMP_FILTER.write_text("0", encoding="utf-8")
    except OSError as error:
        _logger.warning(
            "event=core_dumps_hold_memory %s; a core dump of the scheduler holds the job's token", error
        )


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
        StoreLostError: a job is there that its scheduler's store does not know, and MS_REBUILD_STORE is not set.
        StoreError, RecoveryPathError: as the store finds it.
    """
    path = settings.recovery_path
    if path is None:
        return None
    traces = store_rebuild.lost_in(path, accept_without_wal=settings.store_without_wal)
    if traces is not None and not traces.is_asked_for:
        if not settings.rules.rebuild_store:
            raise StoreLostError(path=str(path), found=traces.description)
        archived = store_rebuild.ask_workers(path, settings.rules)
        _logger.warning("event=store_rebuilding %s; every worker is asked", traces.description)
        if archived is not None:
            _logger.warning(
                "event=store_laid_aside what was left of the lost store is archived in %s", archived
            )
    return SchedulerStore.open(
        path, accept_without_wal=settings.store_without_wal, on_busy=_teller_of_a_lock()
    )


def _teller_of_a_lock() -> Callable[[StoreBusyError], None]:
    """Says once that the start waits: who ended instead would use up its launcher's restarts, and the job with them."""
    told = False

    def tell(error: StoreBusyError) -> None:
        nonlocal told
        if not told:
            _logger.warning("%s %s", error.log_event, error)
        told = True

    return tell


def load_machine(store: SchedulerStore | None, settings: Settings) -> SchedulerMachine:
    """Build the scheduler's machine from what is stored.

    Raises:
        RegistrationError: the stored job has another world size.
        StoreError: the store cannot be read.
    """
    state = store.load() if store is not None else None
    if state is None or state.job is None:
        machine = SchedulerMachine(new_job(uuid.uuid4().hex, settings.rules), settings.rules)
    else:
        job, rules = next_incarnation(state.job), settings.rules
        if store_rebuild.is_asked_for(job):
            # Whether the settings are those of the job shows when the workers have said which it is.
            job = msgspec.structs.replace(
                job, worker_count=rules.worker_count, server_count=rules.server_count
            )
            rules = msgspec.structs.replace(rules, rebuild_store=True)
        else:
            _check_same_job(state, settings)
        machine = SchedulerMachine(job, rules)
        assert store is not None, "the state came from it"
        nodes = _as_of_now(state.nodes, store.away_ms())
        machine.restore(
            nodes,
            state.generations,
            state.checkpoints,
            state.slots,
            state.processes,
            state.copies,
            live_sources=state.live_sources,
            training_ends=state.training_ends,
        )
        machine.state.checkpoints.failed_work, machine.state.notices = _counted(settings, state.job)
    if settings.recovery_path is not None:
        machine.state.archived_jobs, unreadable = archived_jobs(settings.recovery_path)
        for line in unreadable:
            _logger.warning("event=store_failed %s", line)
    return machine


def _counted(settings: Settings, job: JobRecord) -> tuple[FailedWork, int]:
    """What has failed beside training in the run so far, and its notices: for people, so what is damaged in the event log keeps no scheduler from its start."""
    path = settings.recovery_path
    assert path is not None, "the state came from there"
    try:
        return read_failed_work(path, job.run), read_notices(path, job.run)
    except RecoveryError as error:
        text = "event=store_failed failed saves, copies and uploads, and notices, are counted from now on: %s"
        _logger.warning(text, error)
        return FailedWork(), 0


def _as_of_now(nodes: tuple[NodeRecord, ...], away_ms: int | None) -> tuple[NodeRecord, ...]:
    """A window runs on while no scheduler runs, as long as the host's own clock can say for how long that was."""
    if not any(node.rejoin_left_ms for node in nodes):
        return nodes
    if away_ms is None:
        text = "nobody can say for how long no scheduler ran: what was left of open rejoin windows runs now"
        _logger.warning("event=windows_kept %s", text)
        return nodes
    return tuple(
        msgspec.structs.replace(node, rejoin_left_ms=max(0, node.rejoin_left_ms - away_ms)) for node in nodes
    )


def _check_same_job(state: SchedulerRecords, settings: Settings) -> None:
    assert state.job is not None, "checked by the caller"
    for field, stored, given in (
        ("MS_WORKER_NUM", state.job.worker_count, settings.rules.worker_count),
        ("MS_SERVER_NUM", state.job.server_count, settings.rules.server_count),
    ):
        if stored != given:
            raise RegistrationError(
                "JOB_MISMATCH",
                reason=f"{field}={given}, but the job stored in {settings.recovery_path} has {stored}. "
                f"Set {field}={stored} to go on with it, or choose another MS_RECOVERY_PATH for a new job.",
            )
