"""The certificates that peers have presented: whom they name, and whether they still count.

A handshake judges a certificate once. A connection may last for weeks, so what was judged then is judged again while it lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from aiohttp import web
from cryptography import x509

from recovery import clock
from recovery.core.ids import ConnectionId
from recovery.tls.channel import Channel, peer_of
from recovery.tls.identity import Identity, identity_of
from recovery.tls.material import Material

LOOK_S = 10.0
"""Between two looks at the files. A revoked peer is to be gone within 60 s of the list that says so."""
JUDGE_MS = 40_000
"""Between two looks at all peers while no file changes: only time passes, and certificates expire by the day."""

_logger = logging.getLogger("recovery.transport")


class PeerCertificate(NamedTuple):
    """What a peer has presented."""

    certificate: x509.Certificate
    identity: Identity | None
    """None: it restricts its holder to nothing."""
    traced: bool
    """The way to its authority was known here when it was let in."""


class Judged(Protocol):
    """A connection, as far as it is judged here."""

    certificate: PeerCertificate | None
    peer: str

    def cut_off(self, reason: str) -> None:
        """Close it at once."""


def certificate_of(request: web.BaseRequest, channel: Channel) -> PeerCertificate | None:
    """What the peer of a request has presented; None: it has none.

    Raises:
        CertificateError: it names somebody in a way that cannot be read.
    """
    stream = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
    found = peer_of(stream)
    if found is None:
        # Cannot be while both sides must present one. A peer that has none is nobody.
        return None
    return PeerCertificate(found, identity_of(found), channel.material.traces(found))


async def watch(channel: Channel, connections: Mapping[ConnectionId, Judged]) -> None:
    """Take new files, log what expires, and cut off peers that are revoked. Ends when it is cancelled."""
    newest = _Judgement(clock.monotonic_ms(), channel.material)
    while True:
        try:
            newest = await _look(channel, connections, newest)
        except Exception:
            # A look that fails must not be the last: nobody would be revoked any more.
            _logger.exception("event=tls_look_failed the next look is in %g s", LOOK_S)
        await asyncio.sleep(LOOK_S)


class _Judgement(NamedTuple):
    """The newest judgement of all connections."""

    at_ms: int
    by: Material


async def _look(
    channel: Channel, connections: Mapping[ConnectionId, Judged], before: _Judgement
) -> _Judgement:
    for note in await asyncio.to_thread(channel.reload, clock.utc_now()):
        _logger.log(note.level, "event=%s %s", note.event, note.text)
    now = _Judgement(clock.monotonic_ms(), channel.material)
    if now.by is before.by and now.at_ms - before.at_ms < JUDGE_MS:
        return before
    peers = [peer for peer in connections.values() if peer.certificate is not None]
    for peer, reason in await asyncio.to_thread(_judge, channel, peers):
        _logger.warning("event=tls_peer_dropped peer=%s reason=%r", peer.peer, reason)
        peer.cut_off(reason)
    return now


def _judge(channel: Channel, peers: list[Judged]) -> list[tuple[Judged, str]]:
    now, material = clock.utc_now(), channel.material
    judged = [
        (peer, material.why_no_longer(peer.certificate.certificate, now, traced=peer.certificate.traced))
        for peer in peers
        if peer.certificate is not None
    ]
    return [(peer, reason) for peer, reason in judged if reason]
