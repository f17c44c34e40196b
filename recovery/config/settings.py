"""Settings from the environment: read once, checked, every value's source kept. The only reader of os.environ.

How a variable is read is in its row of `recovery.config.table`, the readers, one per kind, are in `recovery.config.reader`; here are
the rules that join several variables. Of several wrong values the first that `load` reads is reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import FrameType

import msgspec

from recovery.config.foreign_launchers import StartedBy
from recovery.config.reader import Reader, Source
from recovery.config.secret import Secret
from recovery.core.ids import NodeId
from recovery.core.rules import Rules
from recovery.errors import SettingError


class SettingsRole(str, Enum):
    """What this process is, whichever way MS_ROLE spells it."""

    SCHEDULER = "scheduler"
    WORKER = "worker"
    SERVER = "pserver"


_ROLES = {
    "MS_SCHED": SettingsRole.SCHEDULER,
    "MS_WORKER": SettingsRole.WORKER,
    "MS_PSERVER": SettingsRole.SERVER,
    "MS_SERVER": SettingsRole.SERVER,
}


class SecureChannel(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says about TLS. It names files only: a password is in none of its values."""

    enabled: bool = False
    config_file: Path | None = None
    client_password_file: Path | None = None
    server_password_file: Path | None = None


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment says about checkpoints in memory."""

    every_steps: int = 0
    """Global steps between two of them; 0: there are none."""
    base: Path = Path("/dev/shm")  # noqa: S108 - each user's directory there is checked to be the user's own
    """Absolute: the tmpfs that they lie on."""
    bytes_max: int = 0
    """Of one rank's at any time; 0: a quarter of what is free, shared by the ranks of the host."""


_TRACE_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the environment holds about this process. Durations are in `rules`, in milliseconds."""

    role: SettingsRole
    started_by: StartedBy
    node_id: NodeId | None
    """None: unset (the caller draws a random one), and always None in the scheduler, whose node id never matters."""
    sched_host: str
    """Without brackets. Not resolved yet."""
    sched_port: int
    worker_host: str
    """Address where other workers reach this one; empty: the address that the scheduler sees."""
    recovery_path: Path | None
    """Absolute. None when recovery is off: nothing is persisted."""
    job_token: Secret | None
    """What every process of the job proves to know, or `off`; None: unset."""
    step_log: Path | None
    """Absolute. File to which each applied step is appended; None: none is written."""
    finished_file: Path | None
    """Absolute. File that is made when this process hears that its job has finished; None: none is."""
    store_without_wal: bool
    standby: bool
    """This process waits as a standby even while there are free slots."""
    replaces: NodeId
    """The lost id whose rank this process was started to take; empty: none."""
    secure_channel: SecureChannel
    memory: MemorySettings
    failed_saves_max: int
    """Saves on the disk that may fail in a row on a rank; 0: any number."""
    checkpoint_store: str
    """URL of object storage for committed checkpoints; empty: there is none."""
    rules: Rules
    sources: tuple[Source, ...]
    """One per row of the table, in its order."""
    compares_replicas: bool = True
    """Each save says what all ranks must have alike."""
    sends_traces: bool = False
    """Somebody has said where OpenTelemetry's traces go: the scheduler sends what each recovery cost."""
    warnings: tuple[str, ...] = ()
    """What was corrected in the reading; the caller logs them once logging is set up."""


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check every variable.

    Args:
        environ: the variables; None: those of this process.

    Returns:
        The settings, with the source of each value.

    Raises:
        SettingError: a required variable is unset, or a variable that has an effect is empty; a value is not of its kind; a value is outside its range or set of values; two values exclude each other.
    """
    environ = os.environ if environ is None else environ
    reader = Reader(environ)
    role = _ROLES[reader.choice("MS_ROLE")]
    recovering = reader.switch("MS_ENABLE_RECOVERY")
    scheduler = role is SettingsRole.SCHEDULER
    worker_count = reader.whole("MS_WORKER_NUM")
    server_count = reader.whole("MS_SERVER_NUM")
    sched_host = reader.host("MS_SCHED_HOST")
    sched_port = reader.whole("MS_SCHED_PORT", also=0 if scheduler else None)
    node_id = None if scheduler else reader.node_id("MS_NODE_ID", required=recovering)
    worker_host = reader.address("MS_WORKER_IP")
    recovery_path = reader.path("MS_RECOVERY_PATH", required=recovering)
    checkpoint_store = reader.url("MS_CHECKPOINT_STORE")
    channel, ignored = _secure_channel(reader)
    rules, warnings = _rules(reader, worker_count, server_count, recovering=recovering)
    # Of launchers alone: a process that is given a wrong one says so, too.
    _ = reader.whole("MS_TAKEOVER_AFTER"), reader.whole("MS_STOP_GRACE")
    _ = reader.path("MS_NOTICE_FILE", required=False), reader.web_address("MS_NOTICE_URL")
    return Settings(
        role=role,
        compares_replicas=reader.switch("MS_COMPARE_REPLICAS"),
        sends_traces=_sends_traces(environ),
        started_by=reader.start.started_by,
        node_id=node_id,
        sched_host=sched_host,
        sched_port=sched_port,
        worker_host=worker_host,
        recovery_path=recovery_path if recovering else None,
        job_token=reader.secret("MS_JOB_TOKEN"),
        step_log=reader.path("MS_STEP_LOG", required=False),
        finished_file=reader.path("MS_FINISHED_FILE", required=False),
        store_without_wal=reader.switch("MS_STORE_WITHOUT_WAL"),
        standby=reader.switch("MS_STANDBY"),
        replaces=reader.node_id("MS_REPLACES", required=False) or NodeId(""),
        secure_channel=channel,
        memory=_memory(reader, recovering=recovering),
        failed_saves_max=reader.whole("MS_FAILED_SAVES_MAX"),
        checkpoint_store=checkpoint_store if recovering else "",
        rules=rules,
        sources=reader.sources(),
        warnings=(*warnings, *ignored),
    )


def _sends_traces(environ: Mapping[str, str]) -> bool:
    """By OpenTelemetry's variables, of which two turn it off."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    return not is_off and exporter != "none" and any(environ.get(name) for name in _TRACE_ENDPOINTS)


def secure_channel(environ: Mapping[str, str] | None = None) -> SecureChannel:
    """Read what the environment says about TLS, and nothing else: for commands, which are no process of a job.

    Args:
        environ: the variables; None: those of this process.

    Raises:
        SettingError: one of the variables is wrong.
    """
    return _secure_channel(Reader(os.environ if environ is None else environ))[0]


def memory_base(environ: Mapping[str, str]) -> Path:
    """Where checkpoints in memory lie: for a launcher, which is no process of a job and clears up behind one.

    Raises:
        SettingError: the variable is wrong.
    """
    return _memory(Reader(environ), recovering=False).base


def _memory(reader: Reader, *, recovering: bool) -> MemorySettings:
    every_steps = reader.whole("MS_MEMORY_CHECKPOINT_STEPS")
    return MemorySettings(
        every_steps=every_steps if recovering else 0,
        bytes_max=reader.whole("MS_MEMORY_CHECKPOINT_BYTES"),
        base=reader.path("MS_MEMORY_CHECKPOINT_PATH", required=False) or MemorySettings().base,
    )


def _secure_channel(reader: Reader) -> tuple[SecureChannel, tuple[str, ...]]:
    channel = SecureChannel(
        enabled=reader.switch("MS_ENABLE_SSL"),
        config_file=reader.path("MS_CONFIG_FILE_PATH", required=False),
        client_password_file=reader.path("MS_CLIENT_PASSWORD_FILE", required=False),
        server_password_file=reader.path("MS_SERVER_PASSWORD_FILE", required=False),
    )
    files = ("MS_CONFIG_FILE_PATH", "MS_CLIENT_PASSWORD_FILE", "MS_SERVER_PASSWORD_FILE")
    without_effect = [name for name in files if reader.given(name)]
    if channel.enabled or not without_effect:
        return channel, ()
    return channel, (
        f"CONFIG_TLS_IGNORED: {', '.join(without_effect)} has no effect while MS_ENABLE_SSL=0: connections are plain text",
    )


def _rules(
    reader: Reader, worker_count: int, server_count: int, *, recovering: bool
) -> tuple[Rules, tuple[str, ...]]:
    """Join the durations and limits into the value that the core obeys."""
    rejoin, copies = reader.choice("MS_REJOIN"), "MS_CHECKPOINT_COPIES"
    lease_ms = reader.whole_ms("MS_NODE_TIMEOUT")
    receive_timeout_ms = reader.bounded_ms("MS_RECEIVE_MSG_TIMEOUT")
    heartbeat_ms_min, heartbeat_ms_max, warnings = _heartbeat(reader, lease_ms, receive_timeout_ms)
    return Rules(
        worker_count=worker_count,
        server_count=server_count,
        recovery_enabled=recovering,
        lease_ms=Rules(worker_count=worker_count).lease_ms if lease_ms is None else lease_ms,
        rejoin_window_ms=reader.decimal_ms("MS_REJOIN_WINDOW"),
        reconnect_grace_ms=reader.decimal_ms("MS_RECONNECT_GRACE"),
        topology_timeout_ms=reader.whole_ms("MS_TOPO_TIMEOUT"),
        abort_timeout_ms=reader.decimal_ms("MS_ABORT_TIMEOUT"),
        step_timeout_ms=reader.decimal_ms_or("auto", "MS_STEP_TIMEOUT"),
        replaces_hung=reader.choice("MS_ON_HANG") == "replace",
        straggler_percent=reader.whole("MS_STRAGGLER_PERCENT"),
        drain_timeout_ms=reader.decimal_ms("MS_DRAIN_TIMEOUT"),
        receive_timeout_ms=receive_timeout_ms,
        heartbeat_retry_timeout_ms=reader.bounded_ms("MS_HEARTBEAT_RETRY_TIMEOUT"),
        heartbeat_enabled=not reader.switch("MS_DISABLE_HEARTBEAT") and lease_ms is not None,
        heartbeat_ms_min=heartbeat_ms_min,
        heartbeat_ms_max=heartbeat_ms_max,
        rejoin_wait=rejoin != "fail",
        rejoin_on_proof=rejoin == "proof",
        standby_count=reader.whole("MS_STANDBY_NUM"),
        checkpoint_copies=reader.whole(copies) if reader.given(copies) else None,
        allow_restart_from_zero=reader.switch("MS_ALLOW_RESTART_FROM_ZERO"),
        continues_run=reader.switch("MS_CONTINUE"),
        rebuild_store=reader.switch("MS_REBUILD_STORE"),
        live_rollback=reader.choice("MS_ROLLBACK") == "live",
    ), warnings


def _heartbeat(
    reader: Reader, lease_ms: int | None, receive_timeout_ms: int
) -> tuple[int, int, tuple[str, ...]]:
    """Bounds of the wait between heartbeats, which must fit several times into the lease and into the reply's wait.

    The defaults (3 and 5 s) are a tenth and a sixth of the default lease, a fifth and a third of the default wait; where
    one of those is set shorter, unset bounds shrink with it.
    """
    lower_name, upper_name = "MS_RETRY_INTERVAL_LOWER", "MS_RETRY_INTERVAL_UPPER"
    lower_ms, upper_ms = reader.bounded_ms(lower_name), reader.bounded_ms(upper_name)
    lease_or_more_ms = receive_timeout_ms * 2 if lease_ms is None else lease_ms
    if not reader.given(lower_name):
        lower_ms = min(lower_ms, lease_or_more_ms // 10, receive_timeout_ms // 5)
    if not reader.given(upper_name):
        upper_ms = min(upper_ms, lease_or_more_ms // 6, receive_timeout_ms // 3)
    elif upper_ms >= min(lease_or_more_ms, receive_timeout_ms):
        lease = "no limit" if lease_ms is None else str(lease_ms // 1_000)
        raise SettingError(
            "SETTING_CONFLICT",
            field=upper_name,
            value=reader.text(upper_name),
            rule=f"must be less than MS_NODE_TIMEOUT ({lease}) and MS_RECEIVE_MSG_TIMEOUT ({receive_timeout_ms // 1_000})",
            next_step="Lower it, or raise the two, for example MS_NODE_TIMEOUT=30 MS_RECEIVE_MSG_TIMEOUT=15.",
        )
    if lower_ms <= upper_ms:
        return lower_ms, upper_ms, ()
    if not reader.given(lower_name):
        return upper_ms, upper_ms, ()
    warning = (
        f"{lower_name}={reader.text(lower_name)} is above the upper bound of {upper_ms / 1_000:g} s; "
        f"{upper_ms / 1_000:g} s is used for both. Set {upper_name} to at least {reader.text(lower_name)}."
    )
    return upper_ms, upper_ms, (warning,)


def under_pytest() -> bool:
    """Does pytest run what calls this (`pytest -s -v train.py`, as the MindSpore documents start it), a test or the module itself?

    Asked of the stack: a variable would be inherited by what a test starts, and is not set yet while a module is imported.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - no other way to it
    while frame is not None:
        if frame.f_globals.get("__name__") == "_pytest.main":
            return True
        frame = frame.f_back
    return False
