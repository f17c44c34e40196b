"""TLS before the connection limiter: a connection is handed on when its handshake is through, and costs little until then.

asyncio would do the handshake by itself, but without a bound on how many are in the middle of one, with one context for ever, and
with an object of OpenSSL for each that was accepted: 2,000 peers that say nothing kept the one behind them waiting for seconds. Here
there is one from the first byte on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from recovery.core.ids import ConnectionId
from recovery.tls.channel import Channel
from recovery.tls.contexts import send_alert
from recovery.tls.handshakes import why_not_finished
from recovery.transport.peer_certificates import Judged, watch
from recovery.transport.rejection_log import RejectionLog

HANDSHAKE_S = 5.0
"""From the acceptance to the first byte, and from there to the end. A worker needs milliseconds, and a second on a machine that swaps. asyncio's own 60 s hold twelve times as many silent peers."""
HANDSHAKES_BESIDE_NODES = 256
"""Silent, or in the middle of one, beside one for each node of the job: all of them dial a scheduler that is back at once. Beyond it the
oldest of the busiest address is closed: a real worker is through in milliseconds."""
# Python 3.10 bounds the end of TLS by the end of the connection only.
_SHUTDOWN: dict[str, Any] = {"ssl_shutdown_timeout": 1.0} if sys.version_info >= (3, 11) else {}


class TlsAcceptor:
    """Makes the protocol of each accepted socket. All of it runs in one event loop."""

    def __init__(
        self,
        channel: Channel,
        connected: Callable[[], asyncio.Protocol],
        rejections: RejectionLog,
        *,
        nodes: int,
        judged: Mapping[ConnectionId, Judged],
    ) -> None:
        """Accept nothing yet, and begin to watch the channel's files and the connections that are judged by them.

        Args:
            channel: its context of the moment is used for each handshake.
            connected: makes the protocol that a connection is handed to.
            rejections: logs handshakes that fail.
            nodes: how many the job has.
            judged: what is known of each connection's certificate.
        """
        self._max = nodes + HANDSHAKES_BESIDE_NODES
        self._channel, self._connected, self._rejections = channel, connected, rejections
        self._shaking: dict[str, dict[_Shaking, None]] = {}
        """By address, oldest first."""
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = asyncio.get_running_loop().create_task(watch(channel, judged))

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of one socket."""
        return _Shaking(self)

    def begin(self, shaking: _Shaking) -> None:
        """A socket was accepted."""
        self._shaking.setdefault(shaking.peer, {})[shaking] = None
        self._count += 1
        if self._count > self._max:
            busiest = max(self._shaking.values(), key=len)
            oldest = next(iter(busiest))
            self._forget(oldest)
            self._rejections.note(oldest.peer, f"silent, and more than {self._max} handshakes are going on")
            oldest.transport.abort()

    def first_byte(self, shaking: _Shaking, data: bytes) -> None:
        """It is not silent."""
        task = asyncio.get_running_loop().create_task(self._shake(shaking, data))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def silent(self, shaking: _Shaking) -> None:
        """It has said nothing for long enough."""
        if self._forget(shaking):
            self._rejections.note(shaking.peer, why_not_finished(TimeoutError()))
        shaking.transport.abort()

    def lost(self, shaking: _Shaking) -> None:
        """It is gone, and its handshake has not begun."""
        self._forget(shaking)

    async def stop(self) -> None:
        """Close what is silent, or in the middle of a handshake."""
        self._watch.cancel()
        await asyncio.wait((self._watch,))
        for of_address in list(self._shaking.values()):
            for shaking in list(of_address):
                shaking.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _shake(self, shaking: _Shaking, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        send_alert.set(shaking.transport.write)
        started = loop.create_task(
            loop.start_tls(
                shaking.transport,
                shaking,
                self._channel.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S,
                **_SHUTDOWN,
            )
        )
        secure: asyncio.Transport | None = None
        try:
            await _hand_over(shaking.transport, data, started)
            secure = await started
        except (OSError, asyncio.TimeoutError) as error:
            if self._forget(shaking):
                self._rejections.note(shaking.peer, why_not_finished(error))
        finally:
            # Whatever ended it: nobody else knows this socket.
            started.cancel()
            known = self._forget(shaking)
            # The end of a closed socket is reported already: a server that takes it on now would keep it for ever.
            if secure is None or not known or shaking.transport.is_closing():
                shaking.transport.abort()
                secure = None
        if secure is not None:
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


async def _hand_over(
    transport: asyncio.Transport, data: bytes, started: asyncio.Task[asyncio.Transport | None]
) -> None:
    """Give the protocol of TLS what was read before there was one.

    Args:
        transport: it does not read now. It does again once TLS has begun.
        data: what was read.
        started: the `start_tls` of the transport.
    """
    while not (transport.is_reading() or transport.is_closing() or started.done()):  # noqa: ASYNC110 - as below
        # A turn of the loop or two: TLS reads as soon as it is there, and tells nobody.
        await asyncio.sleep(0)
    protocol = transport.get_protocol()
    if isinstance(protocol, asyncio.BufferedProtocol):
        rest = memoryview(data)
        while rest:
            space = memoryview(protocol.get_buffer(len(rest)))
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            protocol.buffer_updated(count)
            rest = rest[count:]
    elif isinstance(protocol, asyncio.Protocol):
        # As asyncio of Python 3.10 makes it.
        protocol.data_received(data)


class _Shaking(asyncio.Protocol):
    """One socket from its acceptance to the end of its handshake. What arrives with the last message of that is kept for the next reader."""

    def __init__(self, acceptor: TlsAcceptor) -> None:
        self._acceptor = acceptor
        self._begun = False
        self._early: list[bytes] = []
        self._deadline: asyncio.TimerHandle | None = None
        self.peer = "unknown"
        self.transport: asyncio.Transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream"
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if name else "unknown"
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._acceptor.silent, self)
        self._acceptor.begin(self)

    @override
    def data_received(self, data: bytes) -> None:
        if self._begun:
            self._early.append(data)
            return
        self._begun = True
        self._rests()
        # Until TLS takes what comes.
        self.transport.pause_reading()
        self._acceptor.first_byte(self, data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._rests()
        if not self._begun:
            self._acceptor.lost(self)

    def hand_on(self, protocol: asyncio.Protocol, secure: asyncio.Transport) -> None:
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        for data in self._early:
            protocol.data_received(data)

    def _rests(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
