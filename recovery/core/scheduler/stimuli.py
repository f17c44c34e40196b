"""What happens to the scheduler's machine. Past tense. Randomness comes along as a field, so that the core draws none."""

from __future__ import annotations

from typing import Union

import msgspec

from recovery.core.ids import ConnectionId, Incarnation, NodeId, ResumeToken
from recovery.core.messages import FromNode
from recovery.core.principals import Principal
from recovery.core.scheduler.effects import SchedulerTimer


class MessageReceived(msgspec.Struct, frozen=True, tag="message_received"):
    """A decoded message of a node."""

    connection: ConnectionId
    message: FromNode
    peer: str
    """Address that the connection comes from."""
    fresh_token: ResumeToken
    """A new secret, used if this message leads to an admission; empty where none can (only a Register does)."""
    principal: Principal | None = None
    """The principal that the peer has proven to be; None: the network is trusted, and nobody proves anything."""


class ConnectionLost(msgspec.Struct, frozen=True, tag="connection_lost"):
    """A connection closed, for whatever reason."""

    connection: ConnectionId
    reason: str


class DrainAsked(msgspec.Struct, frozen=True, tag="drain_asked"):
    """A person asked for the ranks of these nodes to be handed over to standbys."""

    nodes: tuple[NodeId, ...]
    host: str
    """The host that they all leave, so that no standby of it takes a rank; empty: they are single nodes."""
    reason: str


class TimerFired(msgspec.Struct, frozen=True, tag="timer_fired"):
    """A timer that the machine set is due."""

    timer: SchedulerTimer


class ProcessGone(msgspec.Struct, frozen=True, tag="process_gone"):
    """A process that the machine had watched has ended for certain."""

    node_id: NodeId
    incarnation: Incarnation


class StopAsked(msgspec.Struct, frozen=True, tag="stop_asked"):
    """A person or a system asked this scheduler to end, by a signal."""

    signal: str


SchedulerStimulus = Union[MessageReceived, ConnectionLost, DrainAsked, TimerFired, ProcessGone, StopAsked]
