"""TLS before the connection limiter: a connection is handed on when its handshake is through, and costs little until then.

asyncio would do the handshake by itself, but without a bound on how many are in the middle of one, and with one context for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from typing_extensions import override

from recovery.tls.alerts import send_alert
from recovery.tls.channel import Channel
from recovery.tls.handshakes import why_not_finished
from recovery.transport.rejection_log import RejectionLog

HANDSHAKE_S = 5.0
"""A worker needs milliseconds, and a second on a machine that swaps. asyncio's own 60 s hold twelve times as many silent peers."""
HANDSHAKES_MAX = 256
"""In the middle of one. Beyond it the oldest of the busiest address is closed: a real worker is through in milliseconds."""
_SHUTDOWN_S = 1.0


class TlsAcceptor:
    """Makes the protocol of each accepted socket. All of it runs in one event loop."""

    def __init__(
        self, channel: Channel, connected: Callable[[], asyncio.Protocol], rejections: RejectionLog
    ) -> None:
        """Accept nothing yet.

        Args:
            channel: its context of the moment is used for each handshake.
            connected: makes the protocol that a connection is handed to.
            rejections: logs handshakes that fail.
        """
        self._channel, self._connected, self._rejections = channel, connected, rejections
        self._shaking: dict[str, dict[_Shaking, None]] = {}
        """By address, oldest first."""
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of one socket."""
        return _Shaking(self)

    def begin(self, shaking: _Shaking) -> None:
        """A socket was accepted."""
        self._shaking.setdefault(shaking.peer, {})[shaking] = None
        self._count += 1
        if self._count > HANDSHAKES_MAX:
            busiest = max(self._shaking.values(), key=len)
            oldest = next(iter(busiest))
            self._forget(oldest)
            self._rejections.note(
                oldest.peer, f"silent, and more than {HANDSHAKES_MAX} handshakes are going on"
            )
            oldest.transport.abort()
        task = asyncio.get_running_loop().create_task(self._shake(shaking))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Close what is in the middle of a handshake."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _shake(self, shaking: _Shaking) -> None:
        loop = asyncio.get_running_loop()
        send_alert.set(shaking.transport.write)
        try:
            secure = await loop.start_tls(
                shaking.transport,
                shaking,
                self._channel.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except (OSError, asyncio.TimeoutError) as error:
            if self._forget(shaking):
                self._rejections.note(shaking.peer, why_not_finished(error))
            shaking.transport.abort()
            return
        except asyncio.CancelledError:
            shaking.transport.abort()
            raise
        known = self._forget(shaking)
        if secure is None or shaking.lost or not known:
            shaking.transport.abort()
            return
        shaking.hand_on(self._connected(), secure)

    def _forget(self, shaking: _Shaking) -> bool:
        """False: it was forgotten before."""
        of_address = self._shaking.get(shaking.peer, {})
        if shaking not in of_address:
            return False
        del of_address[shaking]
        self._count -= 1
        if not of_address:
            del self._shaking[shaking.peer]
        return True


class _Shaking(asyncio.Protocol):
    """One socket from its acceptance to the end of its handshake. What arrives with the last message of that is kept for who comes next."""

    def __init__(self, acceptor: TlsAcceptor) -> None:
        self._acceptor = acceptor
        self._early: list[bytes] = []
        self.peer = "unknown"
        self.lost = False
        self.transport: asyncio.Transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream"
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if name else "unknown"
        self._acceptor.begin(self)

    @override
    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def hand_on(self, protocol: asyncio.Protocol, secure: asyncio.Transport) -> None:
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        for data in self._early:
            protocol.data_received(data)
