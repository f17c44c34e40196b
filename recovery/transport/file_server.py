"""Serves files of checkpoints to the other nodes of the job, by the name of what they belong to, and to nobody else.

`GET /checkpoints/DIGEST/manifest` and `GET /checkpoints/DIGEST/files/N`, the latter by ranges too. A peer proves that it is a node of
the job, by the job's token or its certificate, as it does to the scheduler. What it is given it checks against DIGEST itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from typing_extensions import override

from recovery.core.principals import PrincipalKind
from recovery.errors import RecoveryError
from recovery.transport.connection_limiter import ConnectionLimiter
from recovery.transport.inspection_server import refused, text_of
from recovery.transport.job_token import CHALLENGE_PATH, SCHEME, Authenticator, Denied
from recovery.transport.listening import listening_sockets
from recovery.transport.rejection_log import RejectionLog
from recovery.transport.served import Served

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

    from recovery.tls.channel import Channel
    from recovery.transport.tls_acceptor import TlsAcceptor

TRANSFERS_MAX = 4
"""Files under way at once. More would share the same disk and the same wire; a node that is answered 503 comes back in half a second."""
READER_STALL_S = 30
"""A reader that takes nothing for so long is cut off, so that it does not hold one of the places."""
BUSY = 503
_ANOTHER_TOKEN = 403
_REQUEST_BYTES_MAX = 16_384
_STOP_S = 1.0
_PATH = re.compile(
    r"/checkpoints/(?P<digest>[0-9a-f]{64})/(?:manifest|files/(?P<number>0|[1-9][0-9]{0,5}))", re.ASCII
)


class FileServer:
    """One listening port. All methods run in one event loop; `find` runs in a thread."""

    def __init__(
        self,
        find: Callable[[str], Served | None],
        *,
        authenticator: Authenticator,
        channel: Channel | None = None,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            find: what there is of a digest; None: nothing. It may read files, and runs in a thread.
            authenticator: finds out which peer asks.
            channel: the secure channel's listening side; None: plain text.
        """
        self._find, self._authenticator, self._channel = find, authenticator, channel
        self._rejections = RejectionLog()
        self._slots = asyncio.Semaphore(TRANSFERS_MAX)
        self._sent_to: set[TransportSocket] = set()
        self._listeners: list[asyncio.Server] = []
        self._limiter: ConnectionLimiter
        self._acceptor: TlsAcceptor | None = None

    async def start(self, host: str) -> int:
        """Listen on every address of `host`, on a free port.

        Returns:
            The port.

        Raises:
            ProcessError: `host` does not resolve, or is no address of this machine; no port is free.
        """
        sockets = await listening_sockets(host, 0)
        self._limiter = ConnectionLimiter(
            self._answer, self._rejections, nodes=0, message_bytes_max=_REQUEST_BYTES_MAX
        )
        loop = asyncio.get_running_loop()
        accept: Callable[[], asyncio.Protocol] = self._limiter
        if self._channel is not None:
            # The cryptography is loaded where there is TLS only: 50 ms.
            from recovery.transport.tls_acceptor import TlsAcceptor  # noqa: PLC0415 - as above

            accept = self._acceptor = TlsAcceptor(
                self._channel, self._limiter, self._rejections, nodes=0, judged={}
            )
        for each in sockets:
            self._listeners.append(await loop.create_server(accept, sock=each))
        return int(sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port and every connection. A transfer under way is cut."""
        for listener in self._listeners:
            listener.close()
        try:
            if self._acceptor is not None:
                await self._acceptor.stop()
            await self._cut_transfers()
        finally:
            self._limiter.abort_all()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._limiter.empty.wait(), _STOP_S)
        await self._limiter.shutdown(_STOP_S)

    async def _cut_transfers(self) -> None:
        """End them by their sockets: asyncio tells a sendfile of an aborted connection in a future that is done already, which is an error."""
        for each in self._sent_to:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        # One that a disk holds is cut with its connection.
        with contextlib.suppress(asyncio.TimeoutError):
            for _ in range(TRANSFERS_MAX):
                await asyncio.wait_for(self._slots.acquire(), _STOP_S)

    def descriptors(self) -> list[int]:
        """The port and the connections, for callers that must close them in a forked child."""
        listening = [sock.fileno() for listener in self._listeners for sock in listener.sockets]
        return [*listening, *self._limiter.descriptors()] if listening else []

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if not self._limiter.request_received(request.protocol):
            return text_of(BUSY, "too many connections; try again in a second")
        if self._authenticator.is_closed and request.path == CHALLENGE_PATH:
            # The answer to the challenge comes on the same connection.
            return web.Response(text=self._authenticator.challenge())
        proven = self._look_at(request)
        if isinstance(proven, web.Response):
            if proven.status == _ANOTHER_TOKEN:
                await self._authenticator.renew()
            return proven
        # A node of the job: it may take its time, as READER_STALL_S bounds it.
        self._limiter.release(request.protocol)
        response = await self._response(request)
        response.headers.update(proven)
        return response

    def _look_at(self, request: web.BaseRequest) -> dict[str, str] | web.Response:
        """Give the headers that prove this node to the peer, or refuse it."""
        headers: dict[str, str] = {}
        if self._authenticator.is_closed:
            looked = self._authenticator.look_at(request.headers, request.method, request.path)
            if isinstance(looked, Denied):
                return self._denied(request, looked.status, looked.reason)
            if looked.principal.kind is not PrincipalKind.NODE:
                return self._denied(request, _ANOTHER_TOKEN, "checkpoints are given to nodes of the job only")
            headers = looked.headers
        if "Origin" in request.headers:
            return self._denied(request, _ANOTHER_TOKEN, "not for browsers")
        if self._channel is not None and not self._is_node(request, self._channel):
            return self._denied(request, _ANOTHER_TOKEN, "the certificate of the peer is not that of a node")
        return headers

    @staticmethod
    def _is_node(request: web.BaseRequest, channel: Channel) -> bool:
        """Whether the certificate of the peer lets it be a node. One that names nobody proves that its holder belongs to the job."""
        from recovery.transport.peer_certificates import certificate_of  # noqa: PLC0415 - as in start

        try:
            found = certificate_of(request, channel)
        except RecoveryError:
            return False
        role = found.identity.role if found is not None and found.identity is not None else ""
        return role in ("", "worker", "pserver")

    def _denied(self, request: web.BaseRequest, status: int, reason: str) -> web.Response:
        denied = refused(
            self._rejections, request, f"asked for {request.path[:100]}: {reason}", status, reason
        )
        denied.headers["WWW-Authenticate"] = SCHEME
        return denied

    async def _response(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = _PATH.fullmatch(request.path)
        if asked is None or request.method != "GET":
            return text_of(404, "there are checkpoints here, by their digest")
        served = await asyncio.to_thread(self._find, asked["digest"])
        number = int(asked["number"]) if asked["number"] is not None else None
        if served is None or (number is not None and number >= len(served.files)):
            return text_of(404, "this node does not hold it")
        if number is None:
            return web.Response(body=served.manifest)
        if self._slots.locked():
            busy = text_of(BUSY, f"{TRANSFERS_MAX} files are under way; try again")
            busy.headers["Retry-After"] = "1"
            return busy
        return _Transfer(served.files[number], self._slots, self._sent_to)


class _Transfer(web.FileResponse):
    """One file on its way, by sendfile where there is no TLS. It has one of the places from its first byte to its last."""

    def __init__(self, path: Path, slots: asyncio.Semaphore, sent_to: set[TransportSocket]) -> None:
        super().__init__(path)
        self._slots, self._sent_to = slots, sent_to

    @override
    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send it. aiohttp calls this once the handler has returned."""
        if request.transport is None:
            # It is lost already.
            return await super().prepare(request)
        raw: TransportSocket = request.transport.get_extra_info("socket")
        # The kernel ends a connection whose other end takes nothing any more: sendfile itself would wait for ever.
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, READER_STALL_S * 1000)
        async with self._slots:
            self._sent_to.add(raw)
            try:
                return await super().prepare(request)
            finally:
                self._sent_to.remove(raw)
