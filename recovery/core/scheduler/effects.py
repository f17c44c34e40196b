"""What the scheduler's machine asks of its executor, beside what both machines may ask."""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.effects import Exit, Log, Persist
from recovery.core.ids import ConnectionId
from recovery.core.messages import FromScheduler
from recovery.core.scheduler.timers import SchedulerTimer


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Send to a node a message that promises nothing durable."""

    connection: ConnectionId
    message: FromScheduler


class CloseConnection(msgspec.Struct, frozen=True, tag="close_connection"):
    """Close one connection after what was sent on it."""

    connection: ConnectionId
    reason: str


class SetTimer(msgspec.Struct, frozen=True, tag="set_timer"):
    """Deliver `TimerFired(timer)` at `at_ms`. A later one of the same timer replaces it."""

    timer: SchedulerTimer
    at_ms: int


SchedulerEffect = Union[Persist, Send, CloseConnection, SetTimer, Log, Exit]
