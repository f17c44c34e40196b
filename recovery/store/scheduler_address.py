"""Where the scheduler of a worker's job listens, as the worker's environment says: a reader of the worker's store alone can tell where the rest is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection
from typing_extensions import override

from recovery.store.meta import meta_text, set_meta

_NAME = "scheduler"
_PORT_MAX, _DIGITS_MAX = 65_535, 5


class SchedulerAddress(NamedTuple):
    """MS_SCHED_HOST and MS_SCHED_PORT."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        """As `--connect` takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def note_scheduler_address(connection: Connection, address: SchedulerAddress) -> None:
    """Note it, in the transaction of a write."""
    set_meta(connection, _NAME, f"{address.host} {address.port}")


def scheduler_address(connection: Connection, path: Path) -> SchedulerAddress | None:
    """Where it is; None: no release that notes it has written here, or what it noted is damaged."""
    host, _, port = (meta_text(connection, _NAME, path) or "").rpartition(" ")
    is_number = port.isascii() and port.isdigit() and len(port) <= _DIGITS_MAX
    is_whole = host.isprintable() and host and is_number and int(port) <= _PORT_MAX
    return SchedulerAddress(host, int(port)) if is_whole else None
