"""One node's WebSocket as the scheduler holds it: reading and writing side by side, an end that is reported once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import WSCloseCode, WSMsgType, web

from recovery.core.ids import ConnectionId
from recovery.core.principals import Principal
from recovery.errors import ProtocolError
from recovery.transport.outbox import Outbox

if TYPE_CHECKING:
    from recovery.transport.peer_certificates import PeerCertificate

CLOSE_S = 1.0
"""How long a peer may take to read what was queued before a close, and to answer it. At half of it a busy machine loses the
last message to a worker, at twice the scheduler's own end takes as much longer for each peer that is stuck."""
_CLOSE_REASON_BYTES_MAX = 120
"""A WebSocket close frame holds 123 bytes of text."""


class Connection:
    """The state of one connection. Its `serve` ends when the connection does."""

    def __init__(
        self,
        number: ConnectionId,
        request: web.BaseRequest,
        *,
        frame_bytes_max: int,
        certificate: PeerCertificate | None = None,
    ) -> None:
        """Prepare; `open` answers the handshake.

        Args:
            number: its name for the rest of the scheduler.
            request: the WebSocket request.
            frame_bytes_max: largest message that is read at all, in bytes.
            certificate: what the peer presented; None: there is no TLS.
        """
        self.certificate = certificate
        self.number, self.request = number, request
        self.peer = request.remote or "unknown"
        self.outbox = Outbox()
        self.admitted = self.delivered = self.closing = self.broken = False
        self.reason = ""
        self.principal: Principal | None = None
        """What the peer has proven to be, before the first message; None: nobody proves anything here."""
        # aiohttp refuses a message that is as long as its limit, hence + 1.
        self.socket = web.WebSocketResponse(compress=False, max_msg_size=frame_bytes_max + 1, timeout=CLOSE_S)
        self._transport = request.transport

    async def open(self) -> bool:
        """Answer the handshake. False: the peer is gone already."""
        try:
            await self.socket.prepare(self.request)
        except OSError:
            return False
        return self._transport is not None

    async def serve(self, on_frame: Callable[[bytes], Awaitable[None]], on_end: Callable[[], None]) -> None:
        """Read and write until the connection ends, from either side.

        Args:
            on_frame: called with each binary message; the next one is read when it is through. A ProtocolError that it raises
                ends the connection (`broken`), and so does any other error, which then comes out of `serve`.
            on_end: called once, before the polite part of a close, which may take CLOSE_S.
        """
        reading = asyncio.create_task(self._read(on_frame))
        writing = asyncio.create_task(self.outbox.run(self.socket.send_bytes))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing.done() and writing.exception() is not None:
                # The peer is gone, but what it sent last (a Leave) may still wait to be read.
                await asyncio.wait((reading,), timeout=CLOSE_S)
        finally:
            reading.cancel()
            writing.cancel()
            results = await asyncio.gather(reading, writing, return_exceptions=True)
            on_end()
        for result in results:
            # An OSError is the connection's ordinary end.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                self.abort()
                raise result
        await self._close_websocket()

    def finish(self, reason: str) -> None:
        """Close once what is queued has been sent, and in CLOSE_S at the latest."""
        if not self.closing:
            self.closing, self.reason = True, reason
            self.outbox.finish()
            asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def cut_off(self, reason: str) -> None:
        """Close at once; what is queued is lost, what it sends from now on is dropped."""
        self.closing, self.reason = True, reason
        self.abort()

    def abort(self) -> None:
        """Close the socket without a close frame."""
        if self._transport is not None:
            self._transport.abort()

    async def _read(self, on_frame: Callable[[bytes], Awaitable[None]]) -> None:
        frame = await self.socket.receive()
        while frame.type is WSMsgType.BINARY:
            if not self.closing:
                try:
                    await on_frame(frame.data)
                except ProtocolError as error:
                    self._mark_broken(str(error.parts["reason"]))
                    return
            frame = await self.socket.receive()
        if frame.type is WSMsgType.TEXT:
            self._mark_broken("a text message, only binary ones are ours")
        elif frame.type is WSMsgType.ERROR and not isinstance(frame.data, OSError):
            self._mark_broken(f"a broken WebSocket frame ({frame.data})")
        elif frame.type is WSMsgType.ERROR:
            self.reason = self.reason or f"connection lost ({frame.data})"
        else:
            self.reason = self.reason or "connection closed"

    def _mark_broken(self, what: str) -> None:
        self.broken, self.reason = True, f"it sent {what}"

    async def _close_websocket(self) -> None:
        """The WebSocket close, bounded: a peer that does not read it is cut off."""
        code = WSCloseCode.POLICY_VIOLATION if self.broken else WSCloseCode.OK
        text = self.reason.encode()[:_CLOSE_REASON_BYTES_MAX].decode(errors="ignore").encode()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.socket.close(code=code, message=text), CLOSE_S)
        # An ordinary close of a socket whose peer does not read waits for ever.
        asyncio.get_running_loop().call_later(CLOSE_S, self.abort)
