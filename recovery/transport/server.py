"""The scheduler's side: one port for worker connections (WebSocket at /cluster) and inspection. Never waits for a peer.

A peer may be a worker, a browser, a port scanner, or stopped in the middle of a message. Whatever it does costs only itself:
connection_limiter.py bounds how many unregistered connections there are and for how long, codec.py lets only whole messages through,
outbox.py bounds what waits for a peer that does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from recovery.core.ids import ConnectionId
from recovery.core.messages import FromNode, FromScheduler, Refused, Register
from recovery.core.principals import Principal, PrincipalKind
from recovery.core.rules import Rules
from recovery.errors import RecoveryError
from recovery.transport.certificate_match import certified, mismatch_of
from recovery.transport.codec import decode_from_node, encode
from recovery.transport.connection import CLOSE_S, Connection
from recovery.transport.connection_limiter import ConnectionLimiter
from recovery.transport.inspection_server import (
    ACTION_BYTES_MAX,
    HEALTH_PATH,
    METRICS_PATH,
    Inspection,
    InspectionPages,
    body_of,
    is_of_this_host,
    refused,
    text_of,
)
from recovery.transport.job_token import CHALLENGE_PATH, SCHEME, Authenticator, Denied, Proven
from recovery.transport.listening import BACKLOG, listening_sockets
from recovery.transport.rejection_log import RejectionLog

if TYPE_CHECKING:
    from recovery.tls.channel import Channel
    from recovery.transport.peer_certificates import PeerCertificate
    from recovery.transport.tls_acceptor import TlsAcceptor

CLUSTER_PATH = "/cluster"
_ANOTHER_TOKEN = 403

ACCEPTED_AT_ONCE = 64
"""Connections accepted before the loop does anything else, as asyncio's `backlog` also means. At the kernel's own backlog a
burst of unregistered peers used up every descriptor before the limiter could close the first; at 16 a thousand workers dial no slower."""


class Server:
    """One listening port. All methods and callbacks run in one event loop."""

    def __init__(
        self,
        *,
        rules: Rules,
        on_message: Callable[[ConnectionId, FromNode, str], None],
        on_lost: Callable[[ConnectionId, str], None],
        inspection: Inspection | None = None,
        channel: Channel | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            rules: limits of frames, and the durations from which the patience with a node that is not admitted follows.
            on_message: called with connection, message and the peer's address (no port). Must not wait. An error that it
                raises goes to the loop's exception handler, and the connection is closed.
            on_lost: called exactly once for each connection that has delivered a message, with a reason for people; also for
                those that `close_connection` or `stop` closes. Never from inside `send` or `close_connection`.
            inspection: what is shown and done over HTTP; `/healthz` is always there.
            channel: the secure channel's listening side; None: plain text.
            authenticator: finds out which peer asks; None: all are let in.
        """
        self._authenticator = authenticator if authenticator is not None else Authenticator(None)
        self._rules, self._on_message, self._on_lost = rules, on_message, on_lost
        self._rejections = RejectionLog()
        self._refused = partial(refused, self._rejections)
        self._shown = InspectionPages(
            inspection if inspection is not None else Inspection(), self._rejections
        )
        self._channel = channel
        self._acceptor: TlsAcceptor | None = None
        self._silence_s = (rules.lease_ms + rules.rejoin_window_ms) / 1000
        """A refused worker may wait out a whole window before it asks again on the same connection."""
        self._delivering = asyncio.Event()
        self._delivering.set()
        self._connections: dict[ConnectionId, Connection] = {}
        self._serving: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count(1)
        self._limiter: ConnectionLimiter | None = None
        self._listeners: list[asyncio.Server] = []

    @property
    def on_loopback(self) -> bool:
        """Whether only processes of this host can reach it."""
        addresses = [each.getsockname()[0] for listener in self._listeners for each in listener.sockets]
        return all(ipaddress.ip_address(address).is_loopback for address in addresses)

    async def start(self, host: str, port: int) -> int:
        """Listen on every address of `host`; returns the bound port (`port` 0: any free one).

        Raises:
            ProcessError: somebody else listens there, or this user may not; `host` does not resolve, or is no address of this machine.
        """
        assert self._limiter is None, "a server is started once"
        sockets = await listening_sockets(host, port)
        bound_port = int(sockets[0].getsockname()[1])
        nodes = self._rules.worker_count + self._rules.server_count
        self._limiter = ConnectionLimiter(
            self._answer,
            self._rejections,
            nodes=nodes,
            message_bytes_max=self._rules.frame_bytes_max_unregistered,
        )
        loop = asyncio.get_running_loop()
        accept: Callable[[], asyncio.Protocol] = self._limiter
        if self._channel is not None:
            # The cryptography is loaded where there is TLS only: 50 ms.
            from recovery.transport.tls_acceptor import TlsAcceptor  # noqa: PLC0415 - as above

            accept = self._acceptor = TlsAcceptor(
                self._channel, self._limiter, self._rejections, nodes=nodes, judged=self._connections
            )
        for each in sockets:
            self._listeners.append(await loop.create_server(accept, sock=each, backlog=ACCEPTED_AT_ONCE))
            # Again, since asyncio has just cut the kernel's queue down to its own size.
            each.listen(BACKLOG)
        return bound_port

    async def stop(self) -> None:
        """Send what is queued, close every connection and the port. Takes at most three times CLOSE_S."""
        if self._limiter is None:
            return
        await self._stop_listening()
        if self._acceptor is not None:
            await self._acceptor.stop()
        self._limiter.abort_silent()
        for connection in list(self._connections.values()):
            connection.finish("the scheduler stops")
        if self._serving:
            await asyncio.wait(self._serving, timeout=2 * CLOSE_S)
        self._limiter.abort_all()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._limiter.empty.wait(), CLOSE_S)
        await self._limiter.shutdown(CLOSE_S)
        self._listeners.clear()

    async def _stop_listening(self) -> None:
        """Let what is just accepted become a connection first: asyncio of 3.11 forgets its socket, open, when the listener closes."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            for each in listener.sockets:
                loop.remove_reader(each.fileno())
        await asyncio.sleep(0)
        for listener in self._listeners:
            listener.close()

    def send(self, connection: ConnectionId, message: FromScheduler) -> None:
        """Queue a message; never blocks. Ignored for a closed connection. A peer that does not read is cut off."""
        found = self._connections.get(connection)
        if found is None or found.closing:
            return
        if not found.outbox.put(encode(message)):
            found.cut_off("it does not read what it is sent")
            self._rejections.note(found.peer, found.reason)

    def pause_delivery(self) -> None:
        """Deliver no message until `resume_delivery`: each connection keeps one, the others wait in its socket, and their sender waits."""
        self._delivering.clear()

    def resume_delivery(self) -> None:
        """Deliver messages again, of each connection in the order in which they came."""
        self._delivering.set()

    def close_connection(self, connection: ConnectionId, reason: str, *, is_fault: bool = False) -> None:
        """Close a connection after what was queued before; what it sends from now on is dropped.

        Args:
            connection: which one; ignored when it is closed already.
            reason: for the peer, and for the log where it is a fault.
            is_fault: the peer has done what it may not do.
        """
        found = self._connections.get(connection)
        if found is not None:
            if is_fault and not found.closing:
                self._rejections.note(found.peer, reason)
            found.finish(reason)

    def admitted(self, connection: ConnectionId) -> None:
        """The peer is a node now: the larger frame limit holds, and the limits for unregistered peers do not."""
        found = self._connections.get(connection)
        if found is not None and self._limiter is not None:
            found.admitted = True
            self._limiter.release(found.request.protocol)

    def refused_for_now(self, connection: ConnectionId) -> None:
        """The peer was answered and waits: it does not count among those that wait for an answer. The caller bounds how many there are."""
        found = self._connections.get(connection)
        if found is not None and self._limiter is not None:
            self._limiter.answered(found.request.protocol)

    def principal(self, connection: ConnectionId) -> Principal | None:
        """What the peer has proven to be; None: nobody proves anything here, or the connection is closed."""
        found = self._connections.get(connection)
        return found.principal if found is not None else None

    # --- one request ---------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._limiter is not None, "requests come in only after start"
        if not self._limiter.request_received(request.protocol):
            many = "too many connections that have not registered"
            return self._refused(request, many, 503, f"{many}; try again in a second")
        if request.path != HEALTH_PATH and self._authenticator.is_foreign(request.headers.get("Host", "")):
            said = "this scheduler is not known by that name; use its address"
            return self._refused(request, "asked for another host", 421, said)
        if self._authenticator.is_closed and request.path == CHALLENGE_PATH:
            # The answer to the challenge comes on the same connection.
            return web.Response(text=self._authenticator.challenge())
        action = self._shown.action_of(request)
        body = await body_of(request) if action is not None else b""
        if body is None:
            return text_of(413, f"a body of at most {ACTION_BYTES_MAX} bytes, and its length")
        proven = self._look_at(request, body)
        if isinstance(proven, web.Response):
            if proven.status == _ANOTHER_TOKEN:
                await self._authenticator.renew()
            return proven
        if request.path == CLUSTER_PATH:
            return await self._serve(request, proven)
        response = await self._shown.page(request) or self._shown.answer(request, action, body)
        if proven is not None:
            response.headers.update(proven.headers)
        return response

    def _look_at(self, request: web.BaseRequest, body: bytes) -> Proven | web.Response | None:
        """The peer that asks, and whether it may ask for this at all; None: nobody proves anything here."""
        if not self._authenticator.is_closed or request.path == HEALTH_PATH:
            return None
        if self._looks_from_here(request):
            return None
        looked = self._authenticator.bearer(request.headers) if request.path == METRICS_PATH else None
        if looked is None:
            looked = self._authenticator.look_at(request.headers, request.method, request.path, body)
        if isinstance(looked, Denied):
            noted = f"asked for {request.path} without the job's token"
            denied = self._refused(request, noted, looked.status, looked.reason)
            denied.headers["WWW-Authenticate"] = SCHEME
            return denied
        if request.path == CLUSTER_PATH and looked.principal.kind is PrincipalKind.VIEWER:
            return text_of(403, "a viewer sends no messages")
        return looked

    def _looks_from_here(self, request: web.BaseRequest) -> bool:
        """Does a process of this host ask for the metrics, and proves nothing? No page of a browser there may, under a name of its own."""
        if request.path != METRICS_PATH or "Authorization" in request.headers:
            return False
        return self._authenticator.is_named(request.headers.get("Host", "")) and is_of_this_host(request)

    async def _serve(self, request: web.BaseRequest, proven: Proven | None) -> web.StreamResponse:
        # Only browsers send it, and a web page must not reach a cluster on localhost.
        if "Origin" in request.headers:
            return self._refused(
                request, "a browser asked for a worker's connection", 403, "not for browsers"
            )
        number = ConnectionId(next(self._numbers))
        certificate: PeerCertificate | None = None
        try:
            if self._channel is not None:
                from recovery.transport.peer_certificates import certificate_of  # noqa: PLC0415 - as in start

                certificate = certificate_of(request, self._channel)
        except RecoveryError as error:
            return self._refused(request, str(error), 403, error.code)
        connection = Connection(
            number, request, frame_bytes_max=self._rules.frame_bytes_max, certificate=certificate
        )
        if not connection.socket.can_prepare(request):
            return self._refused(request, "no WebSocket request", 426, "workers speak WebSocket here")
        if proven is not None:
            connection.principal = proven.principal
            connection.socket.headers.update(proven.headers)
        assert self._limiter is not None, "requests come in only after start"
        is_open = self._limiter.opened(request.protocol, connection.cut_off, proven=proven is not None)
        if not is_open or not await connection.open():
            return text_of(400, "gone")
        self._connections[number] = connection
        served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving.add(served)
        try:
            await connection.serve(partial(self._take, connection), partial(self._end, connection))
        except Exception as error:  # noqa: BLE001 - a bug of the receiver: the loop's owner decides
            _report(f"a message of {connection.peer} was not handled", error)
        finally:
            self._serving.discard(served)
            served.set_result(None)
        return connection.socket

    async def _take(self, connection: Connection, frame: bytes) -> None:
        largest = (
            self._rules.frame_bytes_max if connection.admitted else self._rules.frame_bytes_max_unregistered
        )
        message = decode_from_node(frame, frame_bytes_max=largest, peer=connection.peer)
        if not connection.admitted and self._limiter is not None:
            self._limiter.message_received(connection.request.protocol, self._silence_s)
        if self._mismatch(connection, message):
            return
        # In a loop: one of those that waited may fill the queue again before the next one runs.
        while not self._delivering.is_set():
            await self._delivering.wait()
        if not connection.closing:
            connection.delivered = True
            self._on_message(connection.number, message, connection.peer)

    def _mismatch(self, connection: Connection, message: FromNode) -> bool:
        """Whether the certificate names somebody else than the message does: it is answered, and has no effect."""
        identity = connection.certificate.identity if connection.certificate is not None else None
        mismatch = mismatch_of(identity, message)
        if mismatch is None:
            connection.principal = certified(identity, connection.principal, message, connection.peer)
            return False
        self._rejections.note(connection.peer, f"{mismatch.code}: {mismatch.reason}")
        if isinstance(message, Register):
            refused = Refused(request_id=message.request_id, code=mismatch.code, reason=mismatch.reason)
            self.send(connection.number, refused)
        connection.finish(mismatch.code)
        return True

    def _end(self, connection: Connection) -> None:
        """Report once that the connection is over."""
        if connection.broken:
            self._rejections.note(connection.peer, connection.reason)
        if self._connections.pop(connection.number, None) is None or not connection.delivered:
            return
        try:
            self._on_lost(connection.number, connection.reason)
        except Exception as error:  # noqa: BLE001 - as in _serve
            _report(f"the loss of {connection.peer} was not handled", error)


def _report(what: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
