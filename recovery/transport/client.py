"""The worker's side: one connection at a time, in a loop that the caller owns (a daemon thread of the training process).

aiohttp is imported by the first `connect`, in that thread, not with this module: it costs 110 ms more than asyncio does, which the
main thread may spend on importing its framework.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recovery.core.messages import FromNode, FromScheduler
from recovery.core.rules import Rules
from recovery.errors import ProtocolError
from recovery.transport.access import Access, shown, tls_failure
from recovery.transport.challenge import IMPOSTOR, NOT_LET_IN, REFUSALS, Proofs
from recovery.transport.codec import decode_from_scheduler, encode
from recovery.transport.last_address import LastAddress
from recovery.transport.outbox import Outbox

if TYPE_CHECKING:
    import aiohttp

    from recovery.tls.channel import Channel

_logger = logging.getLogger("recovery.transport")

CLOSE_S = 1.0
"""How long the scheduler may take to read what was queued before a close (a Leave), and to answer it."""


def warm_up() -> None:
    """Import what the first `connect` would: for a process that dials when every millisecond counts."""
    import aiohttp  # noqa: F401, PLC0415 - see the head of this file


class ConnectError(OSError):
    """The dial failed. `reason` says how; the worker machine dials again."""

    def __init__(self, reason: str, *, not_let_in: bool = False) -> None:
        """Keep the reason.

        Args:
            reason: for people.
            not_let_in: a scheduler answered, and does not take this process for one of its job.
        """
        self.reason, self.not_let_in = reason, not_let_in
        super().__init__(reason)


class _Connection:
    """One connection from its dial to its end."""

    def __init__(self, session: aiohttp.ClientSession, stream: aiohttp.ClientWebSocketResponse) -> None:
        self.session, self.stream = session, stream
        self.outbox = Outbox()
        self.task: asyncio.Task[None]

    def raw(self) -> socket.socket | None:
        """The socket, None once it is closed."""
        found: socket.socket | None = self.stream.get_extra_info("socket")
        return found if found is not None and found.fileno() >= 0 else None

    def shut(self) -> None:
        """Break the socket at once: a close would wait for a scheduler that does not read."""
        raw = self.raw()
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.shutdown(socket.SHUT_RDWR)


class Client:
    """The connection to the scheduler. All methods and callbacks run in one event loop."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        rules: Rules,
        on_message: Callable[[FromScheduler], None],
        on_lost: Callable[[str], None],
        access: Access | None = None,
    ) -> None:
        """Prepare; `connect` dials.

        Args:
            host: address or name of the scheduler.
            port: its port.
            rules: limits of frames.
            on_message: called with every message. Must not wait. An error that it raises goes to the loop's exception handler,
                and the connection is closed.
            on_lost: called exactly once for each connection that ends otherwise than by `close`, with a reason for people.
            access: how the connection is secured; None: in no way.
        """
        self._host, self._port, self._rules = host, port, rules
        self._access = access if access is not None else Access()
        self._on_message, self._on_lost = on_message, on_lost
        self._connection: _Connection | None = None
        self._names: Any = LastAddress()
        self._refusals: set[str] = set()
        """Why it was refused since it was connected last, each said once: a worker that trains on dials for ever."""

    @property
    def local_host(self) -> str | None:
        """This machine's address as the current connection uses it: where others can reach this process."""
        raw = self._raw()
        return str(raw.getsockname()[0]) if raw is not None else None

    @property
    def fileno(self) -> int | None:
        """Descriptor of the current connection, for callers that must close it in a forked child."""
        raw = self._raw()
        return raw.fileno() if raw is not None else None

    @property
    def socket_inode(self) -> int | None:
        """Inode of the current connection's socket, so that code that closes sockets leaves it alone."""
        fileno = self.fileno
        return os.fstat(fileno).st_ino if fileno is not None else None

    async def connect(self, timeout_s: float) -> None:
        """Dial; a connection that is there is closed first.

        Args:
            timeout_s: for the whole dial: name, TCP, TLS and WebSocket handshake.

        Raises:
            ConnectError: nobody answers there, not in time, or it is no scheduler of ours.
        """
        await self.close()
        await self._access.reload()
        import aiohttp  # noqa: PLC0415 - see the head of this file

        proofs = Proofs()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, use_dns_cache=False, resolver=self._names),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[proofs.trace],
        )
        try:
            stream = await asyncio.wait_for(self._dial(session, proofs), timeout_s)
        except BaseException as error:
            await session.close()
            if isinstance(error, ConnectError):
                self._log_refusal(error.reason)
                raise
            if isinstance(error, (OSError, asyncio.TimeoutError, aiohttp.ClientError, ValueError)):
                not_let_in = getattr(error, "status", None) in NOT_LET_IN
                if not_let_in:
                    await self._access.not_let_in()
                why = _why(error, timeout_s, self._access.channel)
                if not_let_in or why == IMPOSTOR or why.startswith("TLS_"):
                    self._log_refusal(why)
                raise ConnectError(why, not_let_in=not_let_in) from error
            raise
        self._refusals.clear()
        connection = self._connection = _Connection(session, stream)
        connection.task = asyncio.create_task(self._serve(connection))

    def send(self, message: FromNode) -> None:
        """Queue a message; never blocks. Dropped while there is no connection: the worker machine repeats what matters."""
        connection = self._connection
        if connection is not None and not connection.outbox.put(encode(message)):
            # The scheduler has not read for minutes. The reader sees the end and reports it.
            connection.shut()

    async def close(self) -> None:
        """Send what is queued, then close; `on_lost` is not called. Takes at most twice CLOSE_S."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.outbox.finish()
        done, _ = await asyncio.wait((connection.task,), timeout=CLOSE_S)
        if not done:
            connection.shut()
            connection.task.cancel()
            await asyncio.wait((connection.task,), timeout=CLOSE_S)

    def _log_refusal(self, why: str) -> None:
        if why not in self._refusals:
            self._refusals.add(why)
            _logger.warning("event=dial_refused %s", why)

    def _raw(self) -> socket.socket | None:
        return self._connection.raw() if self._connection is not None else None

    async def _dial(self, session: aiohttp.ClientSession, proofs: Proofs) -> aiohttp.ClientWebSocketResponse:
        import aiohttp  # noqa: PLC0415 - see the head of this file

        answer = await self._access.answer(session, self._host, self._port, "GET", "/cluster")
        # aiohttp refuses a message that is as long as its limit, hence + 1.
        stream: aiohttp.ClientWebSocketResponse = await session.ws_connect(
            f"{self._access.base(self._host, self._port)}/cluster",
            **self._access.tls(self._host),
            headers=answer.headers if answer is not None else None,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
            max_msg_size=self._rules.frame_bytes_max + 1,
            compress=0,
        )
        if answer is not None and not answer.holds(proofs.headers):
            await stream.close()
            raise ConnectError(IMPOSTOR)
        return stream

    async def _serve(self, connection: _Connection) -> None:
        """Read and write until the connection ends, from either side."""
        reading = asyncio.create_task(self._read(connection))
        writing = asyncio.create_task(connection.outbox.run(connection.stream.send_bytes))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing.done() and writing.exception() is not None:
                # The scheduler is gone, but what it sent last (JobEnded) may still wait to be read.
                await asyncio.wait((reading,), timeout=CLOSE_S)
            elif not reading.done():
                # `close` was called. aiohttp waits for the scheduler's answer only while nobody has cancelled the reader, and
                # without that wait the socket may be reset before the scheduler has read what was sent last (a Leave).
                await self._close_websocket(connection)
        finally:
            reading.cancel()
            writing.cancel()
            ended, _ = await asyncio.gather(reading, writing, return_exceptions=True)
            self._report_end(connection, ended)
            await self._close_websocket(connection)
            await connection.session.close()

    async def _close_websocket(self, connection: _Connection) -> None:
        """The WebSocket close, bounded."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(connection.stream.close(), CLOSE_S)

    async def _read(self, connection: _Connection) -> str:
        import aiohttp  # noqa: PLC0415 - see the head of this file

        try:
            while (frame := await connection.stream.receive()).type is aiohttp.WSMsgType.BINARY:
                message = decode_from_scheduler(frame.data, peer=f"{self._host}:{self._port}")
                if self._connection is connection:
                    self._on_message(message)
        except ProtocolError as error:
            return str(error)
        if frame.type is aiohttp.WSMsgType.CLOSE and frame.extra:
            return f"the scheduler closed the connection: {frame.extra}"
        if frame.type is aiohttp.WSMsgType.ERROR:
            return f"connection lost ({frame.data})"
        return "connection closed"

    def _report_end(self, connection: _Connection, ended: str | BaseException) -> None:
        if isinstance(ended, Exception) and not isinstance(ended, OSError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a message of the scheduler was not handled", "exception": ended}
            )
        if self._connection is connection:
            self._connection = None
            self._on_lost(ended if isinstance(ended, str) else "connection closed")


def _why(error: BaseException, timeout_s: float, channel: Channel | None) -> str:
    of_tls = tls_failure(error, channel)
    if of_tls:
        return of_tls
    status = getattr(error, "status", None)
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if status in REFUSALS:
        return REFUSALS[status]
    if status is not None:
        return f"what answers there is no scheduler of ours (HTTP {status})"
    return shown(error)
