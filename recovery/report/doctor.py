"""Is this machine ready for a job? Each check looks at one thing and says what to do where it is not as it should be."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from recovery import clock, config
from recovery.checkpoint import memory_tier
from recovery.config import MemorySettings, Settings, SettingsRole
from recovery.config.reader import OFF
from recovery.errors import RecoveryError, RecoveryPathError
from recovery.frameworks import FRAMEWORKS
from recovery.objects.store import opened
from recovery.report import stored as stored_state
from recovery.scheduler.store_rebuild import lost_in, scheduler_elsewhere
from recovery.store import job_token_file
from recovery.store.lock import owner_of
from recovery.store.paths import scheduler_path
from recovery.tls.process_channels import channel_of
from recovery.tls.side import Side
from recovery.transport.local_address import is_local

_SHARED = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "virtiofs", "fuse.sshfs"),
        *("lustre", "beegfs", "beegfs_nodev", "gpfs", "wekafs", "ocfs2", "gfs2", "pvfs2"),
        *(
            "ceph",
            "fuse.ceph",
            "fuse.ceph-fuse",
            "fuse.glusterfs",
            "fuse.juicefs",
            "fuse.mfs",
            "fuse.seaweedfs",
        ),
        *("fuse.s3fs", "fuse.rclone", "fuse.mountpoint-s3", "fuse.gcsfuse", "fuse.goofys", "fuse.blobfuse2"),
    )
)
"""File systems that several hosts share, by their names in /proc/mounts: on these SQLite's shared memory or the kernel's locks do not hold between
hosts."""
_MOUNTS = Path("/proc/self/mounts")
"""Of the kernel. /etc/mtab, which psutil reads where it is a file, may be one that an image has brought."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How it writes a blank, and what else would part the fields of a line."""
_KEPT = 5
"""CheckpointConfig's default keep_checkpoint_max."""
_IN_MEMORY = 2
"""Checkpoints of a rank that are in memory at one time."""
_MEMORY_SHARE = 4
"""As `training/memory_checkpoints.py` shares what is free."""
_CLOCK_S = 2.0
_DIAL_S = 3.0
_TOOL_S = 20.0
_NO_ADDRESS = "0.0.0.0"  # noqa: S104 - what the tool says while no address is set
_HCCN_TOOL = "hccn_tool"
_HCCN_PLACES = ("/usr/local/Ascend/driver/tools/hccn_tool",)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What one look has found."""

    name: str
    ok: bool
    found: str
    next_step: str = ""
    """What to do; empty when all is well."""


def _check(name: str, found: str, next_step: str = "") -> Check:
    """What there is something to do about is not as it should be."""
    return Check(name=name, ok=not next_step, found=found, next_step=next_step)


def examine(environ: Mapping[str, str]) -> Iterator[Check]:
    """Look at everything that a process with this environment would need."""
    try:
        settings = config.load(environ)
    except RecoveryError as error:
        yield _check("variables", str(error), "Fix that first; the rest follows from it.")
    else:
        yield _check("variables", f"{settings.role.value}, {settings.rules.worker_count} workers")
        yield from _of_settings(settings)
    yield _frameworks()
    yield from _ascend(environ)


def _of_settings(settings: Settings) -> Iterator[Check]:
    yield _port(settings)
    yield _token(settings)
    yield from _secure_channel(settings)
    if settings.recovery_path is not None:
        yield from _path(settings.recovery_path, settings.sched_host)
    if settings.memory.every_steps:
        yield _memory(settings.memory, settings.recovery_path)
    if settings.checkpoint_store:
        yield _checkpoint_store(settings.checkpoint_store)


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
            return _check("port", found, "End what listens there, or set MS_SCHED_PORT to a free one.")
        return _check("port", f"{place} is free")
    try:
        socket.create_connection((host, port), timeout=_DIAL_S).close()
    except OSError as error:
        found = f"{place} does not answer: {error.strerror or error}"
        step = "Start the scheduler (workers may wait for it), or open the port in the firewall."
        return _check("port", found, step)
    return _check("port", f"{place} answers")


def _token(settings: Settings) -> Check:
    """What this process would prove to know. Without a token nobody proves anything."""
    name, given, path = "job token", settings.job_token, settings.recovery_path
    if given is not None:
        return _check(name, "off: the network is trusted" if given.reveal() == OFF else "of MS_JOB_TOKEN")
    if path is None:
        return _check(name, "none, since there is no recovery path: the network is trusted")
    try:
        found = job_token_file.stored(path)
    except RecoveryPathError as error:
        return _check(name, str(error), "Fix that; no process of the job would start with it.")
    file = path / job_token_file.NAME
    return _check(name, f"in {file}" if found else f"none yet: the first process makes {file}")


def _secure_channel(settings: Settings) -> Iterator[Check]:
    """The certificates, keys and lists of this role; nothing where TLS is off on loopback."""
    name = "secure channel"
    if not settings.secure_channel.enabled:
        try:
            loopback = ipaddress.ip_address(settings.sched_host).is_loopback
        except ValueError:
            loopback = settings.sched_host == "localhost"
        if not loopback:
            yield _check(name, f"off: connections to {settings.sched_host} are plain text")
        return
    side = Side.SERVER if settings.role is SettingsRole.SCHEDULER else Side.CLIENT
    try:
        channel = channel_of(settings.secure_channel, side)
    except RecoveryError as error:
        yield _check(name, str(error), "Fix that; no process would start with it.")
        return
    assert channel is not None, "it is on"
    yield _check(name, f"{channel.material!r}")
    # A note of what has changed is none here: nothing was loaded before.
    for note in channel.reload(clock.utc_now()):
        yield _check("certificates", note.text, "Renew it in time.")


# --- the recovery path -----------------------------------------------------------------------------------------------------


def _path(path: Path, host: str) -> Iterator[Check]:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    writable = os.access(there, os.W_OK | os.X_OK) and there.is_dir()
    step = "" if writable else "Give this user the right to write there, or choose another MS_RECOVERY_PATH."
    made = "" if there == path else f" ({path} will be made)"
    yield _check("recovery path", f"{there} {'can' if writable else 'cannot'} be written{made}", step)
    kind = _file_system(there)
    step = "The scheduler's store needs a local disk: choose another MS_RECOVERY_PATH for it."
    yield _check("file system", f"{kind or 'unknown'} at {there}", step if kind in _SHARED else "")
    if writable:
        yield _file_clock(there)
    yield _disk(path, there)
    yield from _lost_store(path, host)
    owner = owner_of(scheduler_path(path))
    if owner is not None:
        yield _check("scheduler", f"pid {owner.pid} has the store open on this host")


def _lost_store(path: Path, host: str) -> Iterator[Check]:
    """A job that its scheduler does not know any more would be refused by the next one, if that is started here.

    Args:
        path: the recovery path.
        host: of the next scheduler.
    """
    try:
        lost = lost_in(path)
    except RecoveryError as error:
        yield _check("store", str(error), "Fix that before the job is started.")
        return
    scheduler = scheduler_elsewhere(lost) if lost is not None else None
    if scheduler is not None and not is_local(host):
        yield _check(
            "store", f"of workers only; the scheduler of their job is on another host, at {scheduler}"
        )
    elif lost is not None:
        found = f"the scheduler's store is lost, its job is not: {lost.description}"
        step = f"Rebuild it: `recovery rebuild {path}`, or MS_REBUILD_STORE=1 in the scheduler."
        yield _check("store", found, step)


def _file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of the mount that a path is on; the last one of the longest prefix counts."""
    try:
        lines = os.fsdecode(mounts.read_bytes()).split("\n")
    except OSError:
        return ""
    whole, best, kind = path.resolve(), "", ""
    for _, named, its_kind, *_ in (line.split(" ") for line in lines if line):
        place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), named)
        if whole.is_relative_to(place) and len(place) >= len(best):
            best, kind = place, its_kind
    return kind


def _file_clock(place: Path) -> Check:
    """A file server's clock that differs makes times of files and events disagree."""
    with tempfile.NamedTemporaryFile(dir=place, prefix=".recovery-doctor-") as file:
        there_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
    apart_s = abs(there_ms - clock.wall_ms()) / 1000
    step = "Set both clocks by NTP. Decisions do not depend on it, times in reports do."
    found = f"this host and the file system are {apart_s:.1f} s apart"
    return _check("clock", found, step if apart_s >= _CLOCK_S else "")


def _disk(path: Path, there: Path) -> Check:
    """Space for the checkpoints that are kept, by the size of what this job has saved."""
    free = shutil.disk_usage(there).free
    needed = sum(_newest_sizes(path)) * _KEPT
    found = f"{free / 1e9:,.1f} GB free"
    if needed:
        found += f"; {_KEPT} checkpoints of all ranks take {needed / 1e9:,.3f} GB"
    step = "Free space, save elsewhere, or lower keep_checkpoint_max."
    return _check("disk", found, step if free <= max(needed, 1 << 28) else "")


def _memory(memory: MemorySettings, recovery_path: Path | None) -> Check:
    """Space for the checkpoints in memory, by the size of what this job has saved. How many ranks a host has nobody knows here."""
    name, free = "memory", memory_tier.free_bytes(memory.base)
    kind = _file_system(memory.base) if memory.base.is_dir() else "no directory"
    if kind not in ("tmpfs", "ramfs"):
        step = "Mount a tmpfs there, or set MS_MEMORY_CHECKPOINT_PATH to one."
        return _check(name, f"{memory.base} is {kind}, not in memory", step)
    limit = memory.bytes_max or free // _MEMORY_SHARE
    needed = max(_newest_sizes(recovery_path), default=0) * _IN_MEMORY
    found = f"{free / 1e9:,.1f} GB free in {memory.base}, of which ranks take {limit / 1e9:,.3f} GB"
    if needed:
        found += f"; {_IN_MEMORY} checkpoints of one rank take {needed / 1e9:,.3f} GB"
    step = "Raise MS_MEMORY_CHECKPOINT_BYTES, enlarge the tmpfs, or leave checkpoints to the disk."
    return _check(name, found, step if limit < max(needed, 1) else "")


def _newest_sizes(recovery_path: Path | None) -> list[int]:
    """What each rank's part of the newest saved step takes; none: nothing was saved, or nobody can say."""
    try:
        saved = () if recovery_path is None else stored_state.read_stored(recovery_path).checkpoints
    except RecoveryError:
        return []
    newest = max((checkpoint.step for checkpoint in saved), default=0)
    return [checkpoint.file_bytes for checkpoint in saved if checkpoint.step == newest]


def _checkpoint_store(url: str) -> Check:
    """One object is created, must not be created again, and is removed."""
    name = "checkpoint store"
    try:
        creates_once = opened(url).creates_once()
    except RecoveryError as error:
        step = "Check the URL, the driver's credentials and endpoint, and that `recovery-engine[objects]` is installed."
        return _check(name, error.fact, step)
    if creates_once:
        return _check(name, f"{url} can be written, and creates an object only once")
    step = (
        "Use a storage that knows conditional writes (If-None-Match: *); without them no step is safe there."
    )
    return _check(name, f"{url} lets an object be written over that was to be created once", step)


# --- frameworks and devices -------------------------------------------------------------------------------------------------


def _frameworks() -> Check:
    found = []
    names = [framework.name for framework in FRAMEWORKS]
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    if found:
        return _check("frameworks", ", ".join(found))
    ways = ", or ".join(f"recovery-engine[{name}]" for name in names)
    return _check("frameworks", f"none of {', '.join(names)}", f"Install one: pip install {ways}.")


def _ascend(environ: Mapping[str, str]) -> Iterator[Check]:
    """On Ascend hosts, the two looks at the devices' network that MindSpore's documents name; nothing elsewhere."""
    tool = shutil.which(_HCCN_TOOL, path=environ.get("PATH")) or next(
        (place for place in _HCCN_PLACES if Path(place).exists()), None
    )
    if tool is None:
        return
    device = environ.get("DEVICE_ID", "0")
    good: tuple[tuple[str, str, Callable[[str], bool], str], ...] = (
        (
            "net health",
            "-net_health",
            lambda said: "Success" in said,
            "Listing at the switch and the cable of that device.",
        ),
        (
            "netdetect",
            "-netdetect",
            lambda said: "address" in said and _NO_ADDRESS not in said,
            f"Name an address to detect: {_HCCN_TOOL} -i {device} -netdetect -s address ADDRESS.",
        ),
    )
    for name, flag, is_good, step in good:
        try:
            done = subprocess.run(  # noqa: S603 - the device's own tool
                [tool, "-i", device, flag, "-g"], capture_output=True, text=True, check=False, timeout=_TOOL_S
            )
            said = (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        yield _check(f"device {device} {name}", said.splitlines()[0], "" if is_good(said) else step)
