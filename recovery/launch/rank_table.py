"""The rank table of MindSpore's documents: JSON that says which device of which host has which rank. Checked, then handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from recovery.errors import SettingConflictError

_Digits = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,9}\Z")]


class _Device(msgspec.Struct, frozen=True):
    device_id: _Digits
    device_ip: str
    rank_id: _Digits


class _Server(msgspec.Struct, frozen=True):
    server_id: str
    device: Annotated[list[_Device], msgspec.Meta(min_length=1)]


class _Table(msgspec.Struct, frozen=True):
    version: str
    server_count: _Digits
    server_list: Annotated[list[_Server], msgspec.Meta(min_length=1)]
    status: str


def check(path: Path, *, worker_num: int) -> None:
    """Refuse a table that does not describe this job.

    Raises:
        SettingConflictError: it cannot be read, is no rank table, is not completed, or has other ranks than 0 to worker_num - 1.
    """
    try:
        table = msgspec.json.decode(path.read_bytes(), type=_Table)
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise _refused(path, f"is no rank table: {error}") from error
    ranks = sorted(int(device.rank_id) for server in table.server_list for device in server.device)
    if table.status != "completed":
        raise _refused(path, f"its status is {table.status!r}, not 'completed'")
    if int(table.server_count) != len(table.server_list):
        raise _refused(
            path, f"server_count is {table.server_count}, but {len(table.server_list)} servers are listed"
        )
    if ranks != list(range(worker_num)):
        raise _refused(path, f"its ranks are {ranks}, not 0 to {worker_num - 1} (--worker_num={worker_num})")


def _refused(path: Path, rule: str) -> SettingConflictError:
    return SettingConflictError(
        field="--rank_table_file",
        value=str(path),
        rule=rule,
        next_step="Make it anew for these hosts, or leave the flag out: ranks are then given by the scheduler.",
    )
