"""Where a command reads a job: the files of its recovery path, or a scheduler that runs."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from pathlib import Path
from typing import Any

import psutil

from recovery import config
from recovery.cli.start import RUN_PATH
from recovery.core.converter import Converter
from recovery.core.records import EventRecord
from recovery.errors import SettingError, UsageError
from recovery.launch.credentials import of_viewer
from recovery.store.lock import owner_of
from recovery.store.paths import scheduler_path
from recovery.store.reader import StoredEvent
from recovery.tls.process_channels import channel_of
from recovery.tls.side import Side
from recovery.transport import inspection_client
from recovery.transport.access import Access

Address = tuple[str, int]
"""Of a running scheduler."""
Source = Path | Address

_event = Converter(EventRecord)


def path_of(path: Path | None) -> Path:
    """The recovery path that is looked at: as typed, else MS_RECOVERY_PATH, else that of `recovery run`, where there is one.

    Raises:
        UsageError: there is none.
    """
    found = path or Path(os.environ.get("MS_RECOVERY_PATH") or RUN_PATH)  # noqa: TID251 - as `recovery run` reads it
    if path is None and not found.is_dir():
        raise UsageError(
            field="PATH",
            reason=f"is not given, and {found} is not there",
            next_step="Name the job's MS_RECOVERY_PATH, or give --connect=HOST:PORT where the command takes it.",
        )
    return found


def source_of(path: Path | None, connect: str | None) -> Source:
    """Take one of the two; neither: as `path_of`.

    Raises:
        UsageError: both are given, or neither, and nothing is there.
        SettingError: `connect` is no address.
    """
    if path is not None and connect is not None:
        raise UsageError(
            field="PATH",
            reason="and --connect=HOST:PORT are both given, and a job is looked at in one place",
            next_step="Leave one of them out.",
        )
    if connect is None:
        return path_of(path)
    host, _, port = str(connect).rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise SettingError(
            "SETTING_TYPE",
            field="--connect",
            value=connect,
            rule="must be HOST:PORT",
            next_step="Give, for example, --connect=127.0.0.1:8118.",
        )
    return host.strip("[]"), int(port)


def scheduler_here(path: Path) -> Address | None:
    """Where the scheduler of a recovery path listens; None: none runs on this host that this user may ask."""
    owner = owner_of(scheduler_path(path))
    try:
        sockets = [] if owner is None else psutil.Process(owner.pid).net_connections(kind="tcp")
    except psutil.Error:
        sockets = []
    listening = [found.laddr for found in sockets if found.status == psutil.CONN_LISTEN]
    if not listening:
        return None
    host, port = listening[0]
    # One that listens on all addresses is reached at this one.
    anywhere = ipaddress.ip_address(host).is_unspecified
    return ("::1" if ":" in host else "127.0.0.1") if anywhere else host, port


def ask(address: Address, route: str, recovery_path: Path | None = None) -> Any:
    """Give the answer of the scheduler that runs there.

    Args:
        address: where.
        route: what is asked for.
        recovery_path: of its job, with the token; None: MS_RECOVERY_PATH, if that is set.

    Raises:
        UsageError: none answers.
    """
    try:
        return asyncio.run(inspection_client.ask(*address, route, access=own_access(recovery_path)))
    except inspection_client.NoAnswerError as error:
        raise UsageError(
            field=f"--connect={address[0]}:{address[1]}",
            reason=f"no scheduler answers there ({error})",
            next_step="Give its MS_SCHED_HOST and MS_SCHED_PORT, or the recovery path, which can be read while no process runs.",
        ) from error


def own_access(recovery_path: Path | None = None) -> Access:
    """With what this command asks: the token of the job that it finds, and the channel that its variables describe.

    Args:
        recovery_path: of the job; None: MS_RECOVERY_PATH, if that is set.

    Raises:
        SettingError, SecureChannelError, RecoveryPathError: they are wrong, or the token's file is.
    """
    channel = channel_of(config.secure_channel(), Side.CLIENT)
    return Access(of_viewer(os.environ, recovery_path), channel)  # noqa: TID251 - read by recovery.config


def event_of(answered: dict[str, Any]) -> StoredEvent:
    """An event of a scheduler's answer. Its number is 0: only the store numbers events."""
    return StoredEvent(sequence=0, wall_ms=answered["wall_ms"], event=_event(answered["event"]))
