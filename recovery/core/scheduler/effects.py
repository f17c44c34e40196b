"""What the scheduler's machine asks of its executor, beside what both machines may ask."""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.effects import Exit, Log, Persist
from recovery.core.ids import ConnectionId, Incarnation, NodeId
from recovery.core.messages import FromScheduler, ProcessIdentity
from recovery.core.scheduler.timers import SchedulerTimer


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Send to a node a message that promises nothing durable."""

    connection: ConnectionId
    message: FromScheduler


class CloseConnection(msgspec.Struct, frozen=True, tag="close_connection"):
    """Close one connection after what was sent on it."""

    connection: ConnectionId
    reason: str
    is_fault: bool = False
    """It said what it may not say: that is in the log, once a minute for each address."""


class KeepConnection(msgspec.Struct, frozen=True, tag="keep_connection"):
    """Leave the connection of a node open that was refused for now: it is answered there when its time has come."""

    connection: ConnectionId


class SetTimer(msgspec.Struct, frozen=True, tag="set_timer"):
    """Deliver `TimerFired(timer)` at `at_ms`. A later one of the same timer replaces it."""

    timer: SchedulerTimer
    at_ms: int


class WatchProcess(msgspec.Struct, frozen=True, tag="watch_process"):
    """Deliver `ProcessGone` once this process has ended, at once where it has. One of another host cannot be watched, which is no failure.

    A later one of the same node takes the place of the earlier.
    """

    node_id: NodeId
    incarnation: Incarnation
    pid: int
    process: ProcessIdentity


class EndWatch(msgspec.Struct, frozen=True, tag="end_watch"):
    """Nothing follows any more from the end of the process of this node that is watched."""

    node_id: NodeId


SchedulerEffect = Union[
    Persist, Send, CloseConnection, KeepConnection, SetTimer, WatchProcess, EndWatch, Log, Exit
]
