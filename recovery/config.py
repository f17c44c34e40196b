"""Settings from the environment: read once, checked, every value's source kept. The only reader of os.environ.

How a variable is read stands in its row of `recovery.settings_table`; here are the readers, one per kind, and the rules
that join several variables. Of several wrong values the first that `load` reads is reported.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from recovery.core.ids import NodeId
from recovery.core.messages import NODE_ID_PATTERN
from recovery.core.rules import Rules
from recovery.errors import (
    SettingConflictError,
    SettingMissingError,
    SettingRangeError,
    SettingTypeError,
)
from recovery.settings_table import BY_NAME, SETTINGS, Fate, Setting
from recovery.start_methods import StartMethod, recognise

_SHOWN_CHARACTERS = 80
"""So much of a wrong value is repeated in its error: enough to recognise it, little enough for one line."""
_DIGITS_MAX = 12
"""More digits than any bound has. Python refuses to convert beyond 4,300, and nobody means them."""
_HOST_CHARACTERS_MAX = 253
_WHOLE = re.compile(r"-?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"(-?)([0-9]+)(?:\.([0-9]{1,3}))?", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)


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


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the value of one variable comes from."""

    name: str
    value: str
    """As typed; empty when unset without a default."""
    source: str
    """`environment`, `mpirun` or `rank table` (what they say in other words), or `default`."""
    rule: str
    fate: Fate


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the environment says about this process. Durations are in `rules`, in milliseconds."""

    role: SettingsRole
    start_method: StartMethod
    node_id: NodeId | None
    """None: unset (the caller draws a random one), and always None in the scheduler, whose node id never matters."""
    sched_host: str
    """Without brackets. Not resolved yet."""
    sched_port: int
    worker_host: str
    """Address where other workers reach this one; empty: the address that the scheduler sees."""
    recovery_path: Path | None
    """Absolute. None when recovery is off: nothing is persisted."""
    step_log: Path | None
    """Absolute. File to which each applied step is appended; None: none is written."""
    store_without_wal: bool
    rules: Rules
    sources: tuple[Source, ...]
    """One per row of the table, in its order."""
    warnings: tuple[str, ...] = ()
    """What was mended in the reading; the caller logs them once logging is set up."""


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check every variable.

    Args:
        environ: the variables; None: those of this process.

    Returns:
        The settings, with the source of each value.

    Raises:
        SettingMissingError: a required variable is unset, or a variable that has an effect is empty.
        SettingTypeError: a value is not of its kind.
        SettingRangeError: a value is outside its range or set of values.
        SettingConflictError: two values exclude each other.
    """
    reader = _Reader(os.environ if environ is None else environ)
    start = reader.start
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
    rules, warnings = _rules(reader, worker_count, server_count, recovering=recovering)
    return Settings(
        role=role,
        start_method=start.method,
        node_id=node_id,
        sched_host=sched_host,
        sched_port=sched_port,
        worker_host=worker_host,
        recovery_path=recovery_path if recovering else None,
        step_log=reader.path("MS_STEP_LOG", required=False),
        store_without_wal=reader.switch("MS_STORE_WITHOUT_WAL"),
        rules=rules,
        sources=reader.sources(),
        warnings=warnings,
    )


def sources(environ: Mapping[str, str]) -> tuple[Source, ...]:
    """Where the value of each variable comes from, checked or not.

    Raises:
        SettingError: mpirun or a rank table has started this process in a way that cannot be read.
    """
    return _Reader(environ).sources()


def _rules(
    reader: _Reader, worker_count: int, server_count: int, *, recovering: bool
) -> tuple[Rules, tuple[str, ...]]:
    """Join the durations and limits into the value that the core obeys."""
    defaults = Rules(worker_count=worker_count)
    rejoin_window_ms = reader.decimal_ms("MS_REJOIN_WINDOW")
    rejoin_wait = reader.choice("MS_REJOIN") == "wait"
    reconnect_grace_ms = reader.decimal_ms("MS_RECONNECT_GRACE")
    abort_timeout_ms = reader.decimal_ms("MS_ABORT_TIMEOUT")
    allow_restart_from_zero = reader.switch("MS_ALLOW_RESTART_FROM_ZERO")
    topology_timeout_ms = reader.whole_ms("MS_TOPO_TIMEOUT")
    lease_ms = reader.whole_ms("MS_NODE_TIMEOUT")
    receive_timeout_ms = reader.bounded_ms("MS_RECEIVE_MSG_TIMEOUT")
    heartbeat_ms_min, heartbeat_ms_max, warnings = _heartbeat(reader, lease_ms, receive_timeout_ms)
    return Rules(
        worker_count=worker_count,
        server_count=server_count,
        recovery_enabled=recovering,
        lease_ms=defaults.lease_ms if lease_ms is None else lease_ms,
        rejoin_window_ms=rejoin_window_ms,
        reconnect_grace_ms=reconnect_grace_ms,
        topology_timeout_ms=topology_timeout_ms,
        abort_timeout_ms=abort_timeout_ms,
        receive_timeout_ms=receive_timeout_ms,
        heartbeat_retry_timeout_ms=reader.bounded_ms("MS_HEARTBEAT_RETRY_TIMEOUT"),
        heartbeat_enabled=not reader.switch("MS_DISABLE_HEARTBEAT") and lease_ms is not None,
        heartbeat_ms_min=heartbeat_ms_min,
        heartbeat_ms_max=heartbeat_ms_max,
        rejoin_wait=rejoin_wait,
        allow_restart_from_zero=allow_restart_from_zero,
    ), warnings


def _heartbeat(
    reader: _Reader, lease_ms: int | None, receive_timeout_ms: int
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
        raise SettingConflictError(
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


class _Reader:
    """Reads one variable at a time, by its row."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.start = recognise(environ)
        self._environ = {**environ, **self.start.variables}

    def given(self, name: str) -> bool:
        """True when the variable is set, even to nothing."""
        return name in self._environ

    def text(self, name: str, *, required: bool | None = None) -> str:
        """The text of a variable, or its default; empty when unset without one."""
        row = BY_NAME[name]
        value = self._environ.get(name)
        if value:
            return value
        if value is None and not (bool(row.required) if required is None else required):
            return row.default
        also_when = f" and be set {row.required}" if value is None else ""
        raise SettingMissingError(
            field=name,
            state="not set" if value is None else "empty",
            value="",
            rule=row.rule + also_when,
            next_step=_next_step(row),
        )

    def choice(self, name: str) -> str:
        """One of the row's words."""
        text = self.text(name)
        if text not in BY_NAME[name].choices:
            raise _out_of_range(BY_NAME[name], text)
        return text

    def switch(self, name: str) -> bool:
        """True for exactly "1"."""
        return self.choice(name) == "1"

    def whole(self, name: str, *, also: int | None = None) -> int:
        """A whole number within the row's bounds, or `also`."""
        row, text = BY_NAME[name], self.text(name)
        if _WHOLE.fullmatch(text) is None:
            raise _of_wrong_kind(row, text)
        if row.negative_is_for_ever and text.startswith("-") and text.strip("-0"):
            return -1
        if len(text) > _DIGITS_MAX:
            raise _out_of_range(row, text)
        number = int(text)
        if number != also and not _within(row, number, 1):
            raise _out_of_range(row, text)
        return number

    def whole_ms(self, name: str) -> int | None:
        """A whole number of seconds as milliseconds; None: negative, which means for ever."""
        seconds = self.whole(name)
        return None if seconds < 0 else seconds * 1_000

    def bounded_ms(self, name: str) -> int:
        """A whole number of seconds as milliseconds, of a row that knows no for ever."""
        return self.whole(name) * 1_000

    def decimal_ms(self, name: str) -> int:
        """Seconds with up to three decimals, as milliseconds. No float on the way: 0.3 s is 300 ms."""
        row, text = BY_NAME[name], self.text(name)
        match = _DECIMAL.fullmatch(text)
        if match is None:
            raise _of_wrong_kind(row, text)
        sign, seconds, decimals = match.groups(default="")
        if sign or len(seconds) > _DIGITS_MAX:
            raise _out_of_range(row, text)
        number_ms = int(seconds) * 1_000 + int(decimals.ljust(3, "0"))
        if not _within(row, number_ms, 1_000):
            raise _out_of_range(row, text)
        return number_ms

    def node_id(self, name: str, *, required: bool) -> NodeId | None:
        """A node id, or None when unset and not required."""
        text = self.text(name, required=required)
        if not text:
            return None
        if re.match(NODE_ID_PATTERN, text) is None:
            raise _of_wrong_kind(BY_NAME[name], text)
        return NodeId(text)

    def host(self, name: str) -> str:
        """An IP address or host name, IPv6 without its brackets."""
        text = self.text(name)
        bare = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
        if not (_is_address(bare) or _is_host_name(bare)):
            raise _of_wrong_kind(BY_NAME[name], text)
        return bare

    def address(self, name: str) -> str:
        """An IP address, or empty when unset."""
        text = self.text(name)
        if text and not _is_address(text):
            raise _of_wrong_kind(BY_NAME[name], text)
        return text

    def path(self, name: str, *, required: bool) -> Path | None:
        """An absolute path, or None when unset and not required."""
        text = self.text(name, required=required)
        if not text:
            return None
        if text != text.strip() or not text.isprintable():
            raise _of_wrong_kind(BY_NAME[name], text)
        try:
            return Path(text).absolute()
        except OSError as gone:
            raise SettingRangeError(
                field=name,
                value=_shown(text),
                rule=f"is relative, and the working directory cannot be read ({gone.strerror})",
                next_step=f"Start from a directory that exists, or set {name} to an absolute path.",
            ) from gone

    def sources(self) -> tuple[Source, ...]:
        """Where each value comes from, for people."""
        return tuple(
            Source(
                name=row.name,
                value=self._environ.get(row.name, row.default),
                source=self._source(row.name),
                rule=row.rule,
                fate=row.fate,
            )
            for row in SETTINGS
        )

    def _source(self, name: str) -> str:
        if name in self.start.variables:
            return self.start.method.value
        return StartMethod.DYNAMIC_CLUSTER.value if self.given(name) else "default"


def _within(row: Setting, number: int, unit: int) -> bool:
    """True when the number, in 1/`unit` of the row's unit, is within its bounds."""
    return (row.low is None or row.low * unit <= number) and (row.high is None or number <= row.high * unit)


def _is_address(text: str) -> bool:
    """True for an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return text.isascii() and text.isprintable()


def _is_host_name(text: str) -> bool:
    """True for a name that could resolve. A last label of digits alone is a mistyped address."""
    labels = text.removesuffix(".").split(".")
    return (
        len(text) <= _HOST_CHARACTERS_MAX
        and all(_LABEL.fullmatch(label) for label in labels)
        and not labels[-1].isdecimal()
    )


def _shown(text: str) -> str:
    """A value as an error repeats it."""
    return (
        text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
    )


def _next_step(row: Setting) -> str:
    use_default = f", or unset it to get {row.default}" if row.default else ""
    return f"Set it, for example {row.name}={row.example}{use_default}."


def _of_wrong_kind(row: Setting, text: str) -> SettingTypeError:
    return SettingTypeError(field=row.name, value=_shown(text), rule=row.rule, next_step=_next_step(row))


def _out_of_range(row: Setting, text: str) -> SettingRangeError:
    return SettingRangeError(field=row.name, value=_shown(text), rule=row.rule, next_step=_next_step(row))


def under_pytest() -> bool:
    """Is this process a pytest run of a training script (`pytest -s -v train.py`), as the MindSpore documents start it?"""
    return (
        "_pytest.main" in sys.modules and "PYTEST_CURRENT_TEST" in os.environ
    )  # the variable alone is inherited
