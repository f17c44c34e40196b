"""The rank table of MindSpore's documents: JSON that maps devices of hosts to ranks. Checked, then passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from recovery.core.converter import UNREADABLE
from recovery.errors import SettingError

_Digits = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,9}\Z")]


class Device(msgspec.Struct, frozen=True):
    """One rank's place."""

    device_id: _Digits
    device_ip: str
    rank_id: _Digits


class Server(msgspec.Struct, frozen=True):
    """One host."""

    server_id: str
    """Its address."""
    device: Annotated[list[Device], msgspec.Meta(min_length=1)]


class RankTable(msgspec.Struct, frozen=True):
    """As in the file, where every number is a string."""

    version: str
    server_count: _Digits
    server_list: Annotated[list[Server], msgspec.Meta(min_length=1)]
    status: str

    @property
    def ranks(self) -> list[int]:
        """All, sorted."""
        return sorted(int(device.rank_id) for server in self.server_list for device in server.device)

    @property
    def first_host(self) -> str:
        """Where rank 0 runs."""
        return next(
            server.server_id
            for server in self.server_list
            for device in server.device
            if int(device.rank_id) == 0
        )


_tables = msgspec.json.Decoder(RankTable)


def read_rank_table(path: Path, *, field: str, worker_num: int | None = None) -> RankTable:
    """Read a table, and refuse one that does not describe this job.

    Args:
        path: of the file.
        field: where the path was given, for the error.
        worker_num: how many workers the job has; None: as many as the table has ranks.

    Raises:
        SettingError: it cannot be read, is no rank table, is not completed, or has other ranks than 0 to worker_num - 1.
    """
    try:
        table = _tables.decode(path.read_bytes())
    except OSError as error:
        raise _refused(field, path, f"cannot be read ({error.strerror})") from error
    except UNREADABLE as error:
        raise _refused(field, path, f"is no rank table: {error}") from error
    if table.status != "completed":
        raise _refused(field, path, f"its status is {table.status!r}, not 'completed'")
    if int(table.server_count) != len(table.server_list):
        raise _refused(
            field,
            path,
            f"server_count is {table.server_count}, but {len(table.server_list)} servers are listed",
        )
    count = len(table.ranks) if worker_num is None else worker_num
    if table.ranks != list(range(count)):
        raise _refused(
            field, path, f"its ranks are {table.ranks}, not 0 to {count - 1}, as a job of {count} workers has"
        )
    return table


def _refused(field: str, path: Path, rule: str) -> SettingError:
    return SettingError(
        "SETTING_CONFLICT",
        field=field,
        value=str(path),
        rule=rule,
        next_step="Write it again for these hosts, or leave it out: ranks are then given by the scheduler.",
    )
