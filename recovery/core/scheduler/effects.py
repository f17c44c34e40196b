"""What the scheduler's machine may ask of the world, beside what both may ask."""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.effects import Exit, Persist, Say, SetTimer
from recovery.core.ids import ConnectionId
from recovery.core.messages import FromScheduler


class Send(msgspec.Struct, frozen=True, tag="send"):
    """To a node; promises nothing that must be durable."""

    connection: ConnectionId
    message: FromScheduler


class CloseConnection(msgspec.Struct, frozen=True, tag="close_connection"):
    """Close one connection after what was sent on it."""

    connection: ConnectionId
    reason: str


SchedulerEffect = Union[Persist, Send, CloseConnection, SetTimer, Say, Exit]
