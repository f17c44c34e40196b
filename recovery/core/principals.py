"""Which principal may say what. A connection has one principal before its first message counts, and one table says which may send each message.

How a principal is known (a certificate, the job token, or its own word where the network is trusted) is found out below, in
`recovery.transport`; what it may do depends on what it is, not on how that is known.
"""

from __future__ import annotations

from enum import Enum
from typing import get_args

import msgspec

from recovery.core import barrier_messages as h
from recovery.core import copy_messages as c
from recovery.core import messages as m
from recovery.core.ids import NodeId, Rank


class PrincipalKind(str, Enum):
    """What is at the other end of a connection."""

    NODE = "node"
    """A process of the job: a worker, a parameter server or a standby, under one node id."""
    LAUNCHER = "launcher"
    """It starts and watches the processes of one host."""
    VIEWER = "viewer"
    """A person or a program that looks at the job. It sends no message at all."""


class AuthMethod(str, Enum):
    """How it is known what is there."""

    CERTIFICATE = "certificate"
    """Its certificate names it."""
    TOKEN = "token"  # noqa: S105 - a word, not a secret
    """It has proven that it knows the job's token, and says its name: a process that has the token may be any of the job."""
    CLAIMED = "claimed"
    """It says so itself: the network is trusted."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The peer on a connection, from its first message to its end."""

    kind: PrincipalKind
    name: str
    """The node id of a node, the address of a launcher; empty for a viewer."""
    known: AuthMethod


class Membership(str, Enum):
    """What the sender must be beside its kind."""

    ANY = "any"
    MEMBER = "member"
    """The scheduler has admitted it on this connection."""
    RANK_0 = "rank 0"
    """A member that holds rank 0."""


class Sender(msgspec.Struct, frozen=True):
    """A row of the table."""

    kind: PrincipalKind
    membership: Membership


_MEMBER = Sender(PrincipalKind.NODE, Membership.MEMBER)

SENDERS: dict[type[msgspec.Struct], Sender] = {
    m.Register: Sender(PrincipalKind.NODE, Membership.ANY),
    m.Exited: Sender(PrincipalKind.LAUNCHER, Membership.ANY),
    h.StopJob: Sender(PrincipalKind.LAUNCHER, Membership.ANY),
    m.RendezvousOpen: Sender(PrincipalKind.NODE, Membership.RANK_0),
    m.Ready: _MEMBER,
    m.Heartbeat: _MEMBER,
    m.CheckpointReport: _MEMBER,
    m.CheckpointInvalid: _MEMBER,
    m.NotSaved: _MEMBER,
    m.StateLoaded: _MEMBER,
    m.FirstStep: _MEMBER,
    m.CollectiveFailed: _MEMBER,
    m.Failure: _MEMBER,
    m.Done: _MEMBER,
    m.Leave: _MEMBER,
    h.Depart: _MEMBER,
    h.StopTraining: _MEMBER,
    h.Position: _MEMBER,
    c.CopyReport: _MEMBER,
    c.CopyFailed: _MEMBER,
    c.UploadReport: _MEMBER,
}
"""By message: the principals that may send it. None may send what has no row."""

assert set(SENDERS) == set(get_args(m.FromNode)), "every message of a node has its row"


def claimed(message: m.FromNode, *, peer: str, member: NodeId | None) -> Principal:
    """The sender of this where the network is trusted, and nobody proves anything. A node that was admitted on a connection stays that node."""
    if member is None and isinstance(message, (m.Exited, h.StopJob)):
        return Principal(kind=PrincipalKind.LAUNCHER, name=peer, known=AuthMethod.CLAIMED)
    name = message.node_id if member is None and isinstance(message, m.Register) else member
    return Principal(kind=PrincipalKind.NODE, name=name or "", known=AuthMethod.CLAIMED)


def violation(principal: Principal, message: m.FromNode, *, member: NodeId | None, rank: Rank | None) -> str:
    """Why this principal may not say this on a connection on which that member was admitted, with that rank; empty: it may."""
    sender = SENDERS[type(message)]
    tag = message.__struct_config__.tag
    if principal.kind is not sender.kind:
        return f"a {principal.kind.value} may not send {tag}"
    if isinstance(message, m.Register) and message.node_id != principal.name:
        return f"it registers as {message.node_id}, and is {principal.name}"
    if sender.membership is not Membership.ANY and member is None:
        return "not registered"
    if sender.membership is Membership.RANK_0 and rank != 0:
        return f"only rank 0 may send {tag}"
    return ""
