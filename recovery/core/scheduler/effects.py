"""What the scheduler's machine asks of its executor, beside what both machines may ask, and the timers that it sets.

Two timers with equal values are the same timer: the later one replaces the earlier.
"""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.effects import Exit, Log, Persist
from recovery.core.ids import ConnectionId, Incarnation, NodeId
from recovery.core.messages import FromScheduler, ProcessIdentity


class GraceTimer(msgspec.Struct, frozen=True, tag="grace"):
    """A suspect node has not come back: it is lost when this is due."""

    node_id: NodeId


class LeaseTimer(msgspec.Struct, frozen=True, tag="lease"):
    """A live node must have been heard by then."""

    node_id: NodeId


class WindowsTimer(msgspec.Struct, frozen=True, tag="windows"):
    """What is left of the open rejoin windows is written down."""


class TopologyTimer(msgspec.Struct, frozen=True, tag="topology"):
    """All ranks must be ready by then (MS_TOPO_TIMEOUT)."""


class OfferTimer(msgspec.Struct, frozen=True, tag="offer"):
    """A standby that was asked to take a slot must have answered by then."""

    slot: str


class ShutdownTimer(msgspec.Struct, frozen=True, tag="shutdown"):
    """The job has ended, and the scheduler's process ends after it."""


class BarrierTimer(msgspec.Struct, frozen=True, tag="barrier"):
    """The barrier under way is to be looked at: it has had its time, or a standby must be ready for each rank that departs."""


class RebuildTimer(msgspec.Struct, frozen=True, tag="rebuild"):
    """While a lost store is built again: a node that knows more of a rank had its time to come."""


class PauseTimer(msgspec.Struct, frozen=True, tag="pause"):
    """The pause before the next generation is over, where several in a row broke at the same step."""


class WaitingTimer(msgspec.Struct, frozen=True, tag="waiting"):
    """The rejoin window is over of an id for which a process waits on its connection."""


SchedulerTimer = Union[
    GraceTimer,
    LeaseTimer,
    WindowsTimer,
    TopologyTimer,
    OfferTimer,
    ShutdownTimer,
    BarrierTimer,
    WaitingTimer,
    RebuildTimer,
    PauseTimer,
]


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
    host: str = ""
    """Where it came from. Of a copy of a running machine boot, pid namespace and numbers of processes are those of the other; empty: nobody knows."""


class EndWatch(msgspec.Struct, frozen=True, tag="end_watch"):
    """Nothing follows any more from the end of the process of this node that is watched."""

    node_id: NodeId


SchedulerEffect = Union[
    Persist, Send, CloseConnection, KeepConnection, SetTimer, WatchProcess, EndWatch, Log, Exit
]
