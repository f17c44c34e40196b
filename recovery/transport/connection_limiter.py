"""Connections between their acceptance and the admission of their node: how many there may be, and for how long.

Three kinds. A *silent* connection has sent no whole HTTP request, a *waiting* one has, and has neither proven the job's token nor sent
a message of ours behind it. Beyond the bound of either kind the oldest is closed: a real worker sends its request in the millisecond it
connects and its proof or its registration in the millisecond it is answered, so that neither flood keeps one out. A *registering* one
has done that and waits to be admitted, for as long as the disk takes; who comes beyond their bound is refused with 503. Every node of the
job has a place in each kind, since all of them dial a scheduler that is back at once. One that was answered and stays, since it waits
for its time, has no place there: its owner bounds how many of these there are.

What is rejected has no effect: a message of it that is read already is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from typing_extensions import override

from recovery.transport.rejection_log import AiohttpLogger, RejectionLog

FIRST_MESSAGE_S = 5.0
"""From acceptance to the first valid message, or to the end of an HTTP answer. A worker needs milliseconds, and half a second on
a machine that swaps; at half of it a stopped-and-continued worker would be lost, at twice a flood holds its places twice as long."""
BESIDE_NODES = 256
"""Connections of each kind beside one for each node of the job: strangers, and processes that are to read why they are refused. Each
costs a descriptor; of the silent and the waiting together they are half of the usual 1,024. At a quarter of it a burst of requests could
close a worker's before its first message arrives. Of which address the oldest waiting one is closed: of the one with the most, so that
one hostile address harms only itself."""
BESIDE_MESSAGE_BYTES = 16_384
"""What an unregistered peer may send beside one largest message of its own: its HTTP requests, the heads of its frames, and pings. A
worker's are some hundred bytes; at four times of it a flood costs a quarter more."""


class _Accepted:
    """One accepted connection, until it is closed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.peer = _address(transport)
        self.deadline: asyncio.TimerHandle | None = None
        self.unregistered = self.registering = False
        self.bounded = True
        """It is not admitted: what it sends between two messages is bounded."""
        self.received_bytes = 0
        """Since the last message, or since it was accepted."""
        self.cut_off: Callable[[str], None] | None = None
        """Called with the reason when it is rejected; None: it has sent no request whose answer goes on."""


class _CountedHandler(web.RequestHandler):
    """aiohttp's protocol of one connection. It counts what comes, since aiohttp's own limit is of one size for the whole connection."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(limiter, **options)
        self._limiter = limiter

    @override
    def data_received(self, data: bytes) -> None:
        if self._limiter.bytes_received(self, len(data)):
            super().data_received(data)


class ConnectionLimiter(web.Server):
    """aiohttp's connection factory, with a count of the connections whose node is not admitted."""

    def __init__(self, handler: Any, rejections: RejectionLog, *, nodes: int, message_bytes_max: int) -> None:
        """Take the handler of requests. Created inside the loop.

        Args:
            handler: called with each request.
            rejections: logs those that are rejected.
            nodes: how many the job has.
            message_bytes_max: largest message of a node that is not admitted, in all its fragments.
        """
        super().__init__(handler)
        # Kept alive for the request behind a challenge, and no longer than the deadlines here allow; no lingering, since nobody has a body to send.
        self._options = {
            "loop": asyncio.get_running_loop(),
            "logger": AiohttpLogger(rejections),
            "access_log": None,
            "keepalive_timeout": FIRST_MESSAGE_S,
            "lingering_time": 0,
            "max_line_size": 2_048,
            "max_field_size": 2_048,
        }
        self._bytes_max = message_bytes_max + BESIDE_MESSAGE_BYTES
        self._rejections = rejections
        self._accepted: dict[web.RequestHandler, _Accepted] = {}
        self._silent: dict[web.RequestHandler, _Accepted] = {}
        self._waiting: dict[str, dict[web.RequestHandler, _Accepted]] = {}
        """By address, oldest first."""
        self._waiting_count = self._registering_count = 0
        self._max = nodes + BESIDE_NODES
        self.empty = asyncio.Event()
        self.empty.set()

    # --- called by aiohttp ---------------------------------------------------------------------------------------------

    @override
    def __call__(self) -> web.RequestHandler:
        """Make the protocol of one accepted socket."""
        return _CountedHandler(self, **self._options)

    @override
    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """A socket was accepted."""
        super().connection_made(handler, transport)
        accepted = self._accepted[handler] = self._silent[handler] = _Accepted(transport)
        self.empty.clear()
        self._arm(accepted, FIRST_MESSAGE_S, f"no message of ours within {FIRST_MESSAGE_S:g} s")
        if len(self._silent) > self._max:
            oldest = next(iter(self._silent))
            self._reject(self._silent.pop(oldest), f"silent, and more than {self._max} connections are")

    @override
    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """A socket is closed, by either side."""
        super().connection_lost(handler, exc)
        self.release(handler)
        self._silent.pop(handler, None)
        self._accepted.pop(handler, None)
        if not self._accepted:
            self.empty.set()

    def bytes_received(self, handler: web.RequestHandler, count: int) -> bool:
        """Count what came; False: it is too much without a message, and the connection is closed."""
        accepted = self._accepted.get(handler)
        if accepted is None or not accepted.bounded:
            return True
        accepted.received_bytes += count
        if accepted.received_bytes <= self._bytes_max:
            return True
        if not accepted.transport.is_closing():
            self._reject(accepted, f"more than {self._bytes_max} bytes without a whole message")
        return False

    # --- called by the server ------------------------------------------------------------------------------------------

    def request_received(self, handler: web.RequestHandler) -> bool:
        """Count a connection that has sent a request as unregistered.

        Returns:
            False where too many are registering: answer 503.
        """
        accepted = self._accepted.get(handler)
        if accepted is None:
            return False
        self._silent.pop(handler, None)
        if accepted.unregistered:
            return True
        if self._registering_count >= self._max:
            return False
        accepted.unregistered = True
        self._waiting.setdefault(accepted.peer, {})[handler] = accepted
        self._waiting_count += 1
        if self._waiting_count > self._max:
            of_busiest_address = max(self._waiting.values(), key=len)
            oldest = next(iter(of_busiest_address))
            why = f"no message behind its request, and more than {self._max} connections are without"
            self._reject(self._no_longer_waits(oldest), why)
        return True

    def opened(self, handler: web.RequestHandler, cut_off: Callable[[str], None], *, proven: bool) -> bool:
        """A connection for messages is asked for: from now on its end has an owner, who drops what it has sent when it is rejected.

        Args:
            handler: whose connection.
            cut_off: called with the reason when it is rejected.
            proven: it has proven the job's token, so that no stranger takes its place. For its first message it has all the time again.

        Returns:
            False where it is closed already.
        """
        accepted = self._accepted.get(handler)
        if accepted is None or accepted.transport.is_closing():
            return False
        accepted.cut_off = cut_off
        if proven:
            self._registers(handler)
            self._arm(accepted, FIRST_MESSAGE_S, f"no message of ours within {FIRST_MESSAGE_S:g} s")
        return True

    def message_received(self, handler: web.RequestHandler, silence_s: float) -> None:
        """A valid message came, but no admission yet: from now on the connection may be silent for `silence_s` seconds.

        Args:
            handler: whose connection.
            silence_s: seconds until it is cut off, unless it sends another message or is admitted.
        """
        accepted = self._accepted.get(handler)
        if accepted is not None and accepted.unregistered:
            accepted.received_bytes = 0
            self._registers(handler)
            self._arm(accepted, silence_s, f"not admitted and silent for {silence_s:g} s")

    def _registers(self, handler: web.RequestHandler) -> None:
        accepted = self._no_longer_waits(handler)
        if not accepted.registering:
            accepted.registering = True
            self._registering_count += 1

    def release(self, handler: web.RequestHandler) -> None:
        """The node is admitted (or gone): no deadline, no counting any more."""
        accepted = self._accepted.get(handler)
        if accepted is None:
            return
        accepted.bounded = False
        if accepted.deadline is not None:
            accepted.deadline.cancel()
            accepted.deadline = None
        if accepted.unregistered:
            self._no_longer_waits(handler)
            self._registering_count -= accepted.registering
            accepted.unregistered = accepted.registering = False

    def answered(self, handler: web.RequestHandler) -> None:
        """The node is refused for now and stays: its place among those that register is free. Its deadline stays; each message renews it."""
        accepted = self._accepted.get(handler)
        if accepted is not None and accepted.registering:
            accepted.registering = False
            self._registering_count -= 1

    def descriptors(self) -> list[int]:
        """The sockets of all connections, for callers that must close them in a forked child."""
        raw = (accepted.transport.get_extra_info("socket") for accepted in list(self._accepted.values()))
        return [sock.fileno() for sock in raw if sock is not None and sock.fileno() >= 0]

    def abort_all(self) -> None:
        """Close every socket at once."""
        for accepted in list(self._accepted.values()):
            accepted.transport.abort()

    def abort_silent(self) -> None:
        """Close those that have sent no request, so that no handler of the server knows them."""
        for accepted in list(self._silent.values()):
            accepted.transport.abort()

    def _no_longer_waits(self, handler: web.RequestHandler) -> _Accepted:
        accepted = self._accepted[handler]
        of_same_address = self._waiting.get(accepted.peer, {})
        if of_same_address.pop(handler, None) is not None:
            self._waiting_count -= 1
            if not of_same_address:
                del self._waiting[accepted.peer]
        return accepted

    # --- deadlines -----------------------------------------------------------------------------------------------------

    def _arm(self, accepted: _Accepted, seconds: float, reason: str) -> None:
        if accepted.deadline is not None:
            accepted.deadline.cancel()
        loop = asyncio.get_running_loop()
        accepted.deadline = loop.call_later(seconds, self._reject, accepted, reason)

    def _reject(self, accepted: _Accepted, reason: str) -> None:
        self._rejections.note(accepted.peer, reason)
        if accepted.cut_off is not None:
            accepted.cut_off(reason)
        accepted.transport.abort()


def _address(transport: asyncio.Transport) -> str:
    """The peer's address without its port; a socket that is closed already has none."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else "unknown"
