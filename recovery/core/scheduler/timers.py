"""What the scheduler waits for. Two timers with equal values are the same timer: the later one replaces the earlier."""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.ids import NodeId


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


class DrainTimer(msgspec.Struct, frozen=True, tag="drain"):
    """The planned departure that is under way has had its time."""


class StandbysTimer(msgspec.Struct, frozen=True, tag="standbys"):
    """By then a standby must be ready for each rank whose process was asked to end."""


class RebuildTimer(msgspec.Struct, frozen=True, tag="rebuild"):
    """While a lost store is built again: a node that knows more of a rank had its time to come."""


class WaitingTimer(msgspec.Struct, frozen=True, tag="waiting"):
    """The rejoin window is over of an id for which a process waits on its connection."""


SchedulerTimer = Union[
    GraceTimer,
    LeaseTimer,
    WindowsTimer,
    TopologyTimer,
    OfferTimer,
    ShutdownTimer,
    DrainTimer,
    StandbysTimer,
    WaitingTimer,
    RebuildTimer,
]
