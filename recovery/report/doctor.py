"""Is this machine ready for a job? Each check looks at one thing and says what to do where it is not as it should be."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from recovery import clock, config, file_systems
from recovery.checkpoint import memory_tier
from recovery.config import MemorySettings, Settings, SettingsRole
from recovery.config.foreign_launchers import StartedBy, recognise
from recovery.config.reader import OFF
from recovery.core.records import CheckpointRecord
from recovery.errors import RecoveryError, RecoveryPathError
from recovery.objects.store import opened
from recovery.report import doctor_devices
from recovery.report import stored as stored_state
from recovery.report.doctor_check import Check, check, standing
from recovery.scheduler.store_rebuild import lost_in, scheduler_elsewhere
from recovery.store import job_token_file
from recovery.store.lock import owner_of
from recovery.store.paths import scheduler_path
from recovery.tls.process_channels import channel_of
from recovery.tls.side import Side
from recovery.transport.local_address import is_local

_KEPT = 5
"""CheckpointConfig's default keep_checkpoint_max."""
_IN_MEMORY = 2
"""Checkpoints of a rank that are in memory at one time."""
_MEMORY_SHARE = 4
"""As `training/memory_checkpoints.py` shares what is free."""
_AS_RUN = {
    "MS_ROLE": "MS_SCHED",
    "MS_WORKER_NUM": "1",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
    "MS_ENABLE_RECOVERY": "1",
    "MS_RECOVERY_PATH": "recovery",
}
"""What `recovery run` sets for the scheduler of a job on one host."""
_ABILITIES = "links, modes, names"
_INODES_MIN = 1_000
"""A job makes some at each save, and a log and a store for each rank."""
_CLOCK_S = 2.0
_DIAL_S = 3.0


def examine(environ: Mapping[str, str], checkpoints: Sequence[Path] = ()) -> Iterator[Check]:
    """Look at everything that a process with this environment would need.

    Args:
        environ: of the process.
        checkpoints: directories that it will save to, besides those that its job has saved to.
    """
    yield from standing("variables", _variables, environ, checkpoints)
    yield from standing("frameworks", doctor_devices.frameworks)
    yield from standing("GPUs", doctor_devices.gpus, environ)
    yield from standing("devices", doctor_devices.ascend, environ)


def _variables(environ: Mapping[str, str], checkpoints: Sequence[Path]) -> Iterator[Check]:
    """And what they name."""
    looked = ""
    try:
        if "MS_ROLE" not in environ and recognise(environ).started_by is StartedBy.DYNAMIC_CLUSTER:
            looked, environ = (
                " of this host, as `recovery run` has it: MS_ROLE is not set",
                {**_AS_RUN, **environ},
            )
        settings = config.load(environ)
    except RecoveryError as error:
        yield check("variables", str(error), "Fix that first; the rest follows from it.")
        return
    yield check("variables", f"{settings.role.value}, {settings.rules.worker_count} workers{looked}")
    yield from standing("port", _port, settings)
    yield from standing("job token", _token, settings)
    yield from standing("secure channel", _secure_channel, settings)
    if settings.recovery_path is not None:
        yield from standing("recovery path", _path, settings.recovery_path, settings.sched_host)
    for directory in _saved_to(settings.recovery_path, checkpoints):
        yield from standing("checkpoint path", _checkpoint_path, directory)
    if settings.memory.every_steps:
        yield from standing("memory", _memory, settings.memory, settings.recovery_path)
    if settings.checkpoint_store:
        yield from standing("checkpoint store", _checkpoint_store, settings.checkpoint_store)


def _port(settings: Settings) -> Check:
    """A worker must reach the scheduler; the scheduler must be able to listen."""
    host, port = settings.sched_host, settings.sched_port
    place = f"{host}:{port}"
    if settings.role is SettingsRole.SCHEDULER:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            found = f"{place} cannot be listened on: {error.strerror or error}"
            return check("port", found, "End what listens there, or set MS_SCHED_PORT to a free one.")
        return check("port", f"{place} is free")
    try:
        socket.create_connection((host, port), timeout=_DIAL_S).close()
    except OSError as error:
        found = f"{place} does not answer: {error.strerror or error}"
        step = "Start the scheduler (workers may wait for it), or open the port in the firewall."
        return check("port", found, step)
    return check("port", f"{place} answers")


def _token(settings: Settings) -> Check:
    """What this process would prove to know. Without a token nobody proves anything."""
    name, given, path = "job token", settings.job_token, settings.recovery_path
    if given is not None:
        return check(name, "off: the network is trusted" if given.reveal() == OFF else "of MS_JOB_TOKEN")
    if path is None:
        return check(name, "none, since there is no recovery path: the network is trusted")
    try:
        found = job_token_file.stored(path)
    except RecoveryPathError as error:
        return check(name, str(error), "Fix that; no process of the job would start with it.")
    file = path / job_token_file.NAME
    return check(name, f"in {file}" if found else f"none yet: the first process makes {file}")


def _secure_channel(settings: Settings) -> Iterator[Check]:
    """The certificates, keys and lists of this role; nothing where TLS is off on loopback."""
    name = "secure channel"
    if not settings.secure_channel.enabled:
        try:
            loopback = ipaddress.ip_address(settings.sched_host).is_loopback
        except ValueError:
            loopback = settings.sched_host == "localhost"
        if not loopback:
            yield check(name, f"off: connections to {settings.sched_host} are plain text")
        return
    side = Side.SERVER if settings.role is SettingsRole.SCHEDULER else Side.CLIENT
    try:
        channel = channel_of(settings.secure_channel, side)
    except RecoveryError as error:
        yield check(name, str(error), "Fix that; no process would start with it.")
        return
    assert channel is not None, "it is on"
    yield check(name, f"{channel.material!r}")
    # A note of what has changed is none here: nothing was loaded before.
    for note in channel.reload(clock.utc_now()):
        yield check("certificates", note.text, "Renew it in time.")


# --- the recovery path -----------------------------------------------------------------------------------------------------


def _path(path: Path, host: str) -> Iterator[Check]:
    there, why_not = _nearest(path)
    writable = not why_not and os.access(there, os.W_OK | os.X_OK) and there.is_dir()
    step = "" if writable else "Give this user the right to write there, or choose another MS_RECOVERY_PATH."
    made = "" if there == path else f" ({path} will be made)"
    found = why_not or f"{there} {'can' if writable else 'cannot'} be written{made}"
    yield check("recovery path", found, step)
    yield from standing("file system", _local_disk, there)
    if writable:
        yield from standing("clock", _file_clock, there)
        yield from standing(_ABILITIES, _abilities, _ABILITIES, there, holds_token=True)
    yield from standing("disk", _disk, path, there)
    if not why_not:
        yield from standing("store", _lost_store, path, host)
        yield from standing("scheduler", _owner, path)


def _nearest(path: Path) -> tuple[Path, str]:
    """The path, or the nearest above it that is there, and why one below that cannot be asked for; empty: all can."""
    why_not = ""
    for place in (path, *path.parents):
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            why_not = why_not or f"{place} cannot be looked at: {error.strerror}"
            continue
        break
    return place, why_not


def _local_disk(there: Path) -> Check:
    kind = file_systems.kind_of(there)
    step = "The scheduler's store needs a local disk: choose another MS_RECOVERY_PATH for it."
    does_not_suit = kind in file_systems.SHARED or file_systems.why_no_store(there)
    return check("file system", f"{kind or 'unknown'} at {there}", step if does_not_suit else "")


def _owner(path: Path) -> Iterator[Check]:
    owner = owner_of(scheduler_path(path))
    if owner is not None:
        yield check("scheduler", f"pid {owner.pid} has the store open on this host")


def _lost_store(path: Path, host: str) -> Iterator[Check]:
    """A job that its scheduler does not know any more would be refused by the next one, if that is started here."""
    try:
        lost = lost_in(path)
    except RecoveryError as error:
        yield check("store", str(error), "Fix that before the job is started.")
        return
    scheduler = scheduler_elsewhere(lost) if lost is not None else None
    if scheduler is not None and not is_local(host):
        yield check(
            "store", f"of workers only; the scheduler of their job is on another host, at {scheduler}"
        )
    elif lost is not None and lost.is_asked_for:
        yield check("store", f"which job it is of is asked of the workers: {lost.description}")
    elif lost is not None:
        found = f"the scheduler's store is lost, its job is not: {lost.description}"
        step = f"Rebuild it: `recovery rebuild {path}`, or MS_REBUILD_STORE=1 in the scheduler."
        yield check("store", found, step)


def _file_clock(place: Path) -> Check:
    """A file server's clock that differs makes times of files and events disagree."""
    before_ms = clock.wall_ms()
    with tempfile.NamedTemporaryFile(dir=place, prefix=".recovery-doctor-") as file:
        there_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
    # A busy host may take seconds between the two.
    apart_s = max(0, before_ms - there_ms, there_ms - clock.wall_ms()) / 1000
    step = "Set both clocks by NTP. Decisions do not depend on it, times in reports do."
    found = f"this host and the file system are {apart_s:.1f} s apart"
    return check("clock", found, step if apart_s >= _CLOCK_S else "")


def _disk(path: Path | None, there: Path) -> Check:
    """Space for the checkpoints that are kept, by the size of what this job has saved."""
    free = shutil.disk_usage(there).free
    needed = sum(saved.file_bytes for saved in _newest(path)) * _KEPT
    found, inodes = f"{free / 1e9:,.1f} GB free", file_systems.inodes(there)
    if inodes is not None:
        found += f", {inodes[1]:,} of {inodes[0]:,} inodes"
        if inodes[1] < _INODES_MIN:
            return check("disk", found, "Remove files there: each takes an inode. Or save elsewhere.")
    if needed:
        found += f"; {_KEPT} checkpoints of all ranks take {needed / 1e9:,.3f} GB"
    step = "Free space, save elsewhere, or lower keep_checkpoint_max."
    return check("disk", found, step if free <= max(needed, 1 << 28) else "")


def _memory(memory: MemorySettings, recovery_path: Path | None) -> Check:
    """Space for the checkpoints in memory, by the size of what this job has saved. How many ranks a host has nobody knows here."""
    name, free = "memory", memory_tier.free_bytes(memory.base)
    kind = file_systems.kind_of(memory.base) if memory.base.is_dir() else "no directory"
    if kind not in ("tmpfs", "ramfs"):
        step = "Mount a tmpfs there, or set MS_MEMORY_CHECKPOINT_PATH to one."
        return check(name, f"{memory.base} is {kind}, not in memory", step)
    limit = memory.bytes_max or free // _MEMORY_SHARE
    needed = max((saved.file_bytes for saved in _newest(recovery_path)), default=0) * _IN_MEMORY
    found = f"{free / 1e9:,.1f} GB free in {memory.base}, of which ranks take {limit / 1e9:,.3f} GB"
    if needed:
        found += f"; {_IN_MEMORY} checkpoints of one rank take {needed / 1e9:,.3f} GB"
    step = "Raise MS_MEMORY_CHECKPOINT_BYTES, enlarge the tmpfs, or leave checkpoints to the disk."
    return check(name, found, step if limit < max(needed, 1) else "")


def _abilities(name: str, there: Path, *, holds_token: bool) -> Check:
    """The job's token needs all but durable names; a checkpoint needs none, and is open to others where there are no modes."""
    lacks = list(file_systems.lacking(there))
    step = "Choose a directory on a local disk (ext4, xfs, btrfs), or set MS_JOB_TOKEN."
    found = "; ".join(lacks) or "its file system has hard links, modes and durable names"
    return check(
        name, f"{there}: {found}", step if holds_token and {*lacks} - {file_systems.WITHOUT_SYNC} else ""
    )


def _saved_to(recovery_path: Path | None, given: Sequence[Path]) -> Iterator[Path]:
    """Directories, each once."""
    known = (Path(saved.path).parent for saved in _newest(recovery_path))
    yield from dict.fromkeys((*given, *known))


def _checkpoint_path(directory: Path) -> Iterator[Check]:
    name, (there, why_not) = "checkpoint path", _nearest(directory)
    if why_not or not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        found = why_not or f"{there} cannot be written"
        yield check(name, found, "Give this user the right to write there, or save elsewhere.")
        return
    yield _abilities(name, there, holds_token=False)
    yield _disk(None, there)


def _newest(recovery_path: Path | None) -> list[CheckpointRecord]:
    """Each rank's part of the newest saved step; none: nothing was saved, or nobody can say."""
    try:
        saved = () if recovery_path is None else stored_state.read_stored(recovery_path).checkpoints
    except (RecoveryError, OSError):
        return []
    newest = max((checkpoint.step for checkpoint in saved), default=0)
    return [checkpoint for checkpoint in saved if checkpoint.step == newest]


def _checkpoint_store(url: str) -> Check:
    """One object is created, must not be created again, and is removed."""
    name = "checkpoint store"
    try:
        creates_once = opened(url).creates_once()
    except RecoveryError as error:
        step = "Check the URL, the driver's credentials and endpoint, and that `recovery-engine[objects]` is installed."
        return check(name, error.fact, step)
    if creates_once:
        return check(name, f"{url} can be written, and creates an object only once")
    step = (
        "Use a storage that knows conditional writes (If-None-Match: *); without them no step is safe there."
    )
    return check(name, f"{url} lets an object be written over that was to be created once", step)
