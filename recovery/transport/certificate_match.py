"""Whom the certificate of a connection names, beside whom the job's token or the first message does: they must agree.

A certificate that names a node or a role makes its holder that one. One that names nobody proves that its holder belongs to the job, no more.
One that names the node `1` counts for the ids `1.2`, `1.3` ... too: a launcher starts a lost process again under these (`--rejoin=new`),
and they follow one another in one place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from recovery.core.barrier_messages import StopJob
from recovery.core.ids import NodeId
from recovery.core.messages import Exited, FromNode, Register
from recovery.core.principals import AuthMethod, Principal, PrincipalKind

if TYPE_CHECKING:
    from recovery.tls.identity import Identity

_LATER_START = re.compile(r"\.[1-9][0-9]*", re.ASCII)
"""What an id of a later start has behind the first one (launch/node_ids.py)."""

_NEXT_STEP = "Give it the PKCS#12 file that was made for it (client_cert_path)."


class Mismatch(NamedTuple):
    """A certificate names somebody else than its holder says to be."""

    code: str
    reason: str


def covers(named: NodeId, node_id: NodeId) -> bool:
    """Does a certificate that names the first of these count for the second?"""
    first, later = node_id[: len(named)], node_id[len(named) :]
    return first == named and (not later or _LATER_START.fullmatch(later) is not None)


def mismatch_of(identity: Identity | None, message: FromNode) -> Mismatch | None:
    """Why the peer is not the one that its certificate names; None: it may go on.

    Args:
        identity: of the certificate; None: there is none, or it names nobody.
        message: what it says. Only the messages that need no registration before them are judged: the others follow one of these.
    """
    if identity is None or not isinstance(message, (Register, Exited, StopJob)):
        return None
    role = message.role.value if isinstance(message, Register) else PrincipalKind.LAUNCHER.value
    if identity.role and identity.role != role:
        said = f"registers as {role}" if isinstance(message, Register) else _as_a_launcher(message)
        return Mismatch(
            "ROLE_CERT_MISMATCH",
            f"the certificate of this process is for the role {identity.role}, and it {said}. {_NEXT_STEP}",
        )
    if not identity.node_id:
        return None
    if isinstance(message, StopJob):
        said = _as_a_launcher(message)
    elif covers(identity.node_id, message.node_id):
        return None
    else:
        said = "registers as" if isinstance(message, Register) else "reports the end of"
        said = f"{said} {message.node_id}"
    return Mismatch(
        "ID_CERT_MISMATCH",
        f"the certificate of this process is that of {identity.node_id}, and it {said}. {_NEXT_STEP}",
    )


def _as_a_launcher(message: Exited | StopJob) -> str:
    said = "asks for the end of the job" if isinstance(message, StopJob) else "reports an end"
    return f"{said}, as only a launcher does"


def certified(
    identity: Identity | None, proven: Principal | None, message: FromNode, peer: str
) -> Principal | None:
    """The peer on a connection, once a message agrees with its certificate; None: only what it says itself.

    Args:
        identity: of the certificate; None: there is none, or it names nobody.
        proven: what it has proven to be before; None: nothing.
        message: with which the certificate agrees.
        peer: the address that it comes from.
    """
    if identity is None or not isinstance(message, (Register, Exited, StopJob)):
        return proven
    if isinstance(message, Register) and identity.node_id:
        named = Principal(kind=PrincipalKind.NODE, name=message.node_id, known=AuthMethod.CERTIFICATE)
    elif not isinstance(message, Register) and identity.role == PrincipalKind.LAUNCHER.value:
        named = Principal(kind=PrincipalKind.LAUNCHER, name=peer, known=AuthMethod.CERTIFICATE)
    else:
        return proven
    if proven is None:
        return named
    # A peer that has proven to be another one stays that one, and the table refuses what it says.
    agrees = proven.kind is named.kind and (proven.name == named.name or named.kind is PrincipalKind.LAUNCHER)
    return msgspec.structs.replace(proven, known=AuthMethod.CERTIFICATE) if agrees else proven
