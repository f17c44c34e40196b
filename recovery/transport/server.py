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
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from recovery.core.ids import ConnectionId
from recovery.core.messages import FromNode, FromScheduler
from recovery.core.rules import Rules
from recovery.errors import RecoveryError
from recovery.transport.codec import decode_from_node, encode
from recovery.transport.connection import CLOSE_S, Connection
from recovery.transport.connection_limiter import ConnectionLimiter
from recovery.transport.inspection import ACTION_BYTES_MAX, Action, Route, healthz, json_body
from recovery.transport.listening import BACKLOG, listening_sockets
from recovery.transport.rejection_log import RejectionLog

if TYPE_CHECKING:
    from recovery.tls.channel import Channel
    from recovery.tls.identity import Identity
    from recovery.transport.peer_certificates import PeerCertificate
    from recovery.transport.tls_acceptor import TlsAcceptor

CLUSTER_PATH = "/cluster"

ACCEPTED_AT_ONCE = 64
"""Connections accepted before the loop does anything else, as asyncio's `backlog` also means. At the kernel's own backlog a
burst of unregistered peers used up every descriptor before the limiter could close the first; at 16 a thousand workers dial no slower."""

_logger = logging.getLogger("recovery.transport")


class Server:
    """One listening port. All methods and callbacks run in one event loop."""

    def __init__(
        self,
        *,
        rules: Rules,
        on_message: Callable[[ConnectionId, FromNode, str], None],
        on_lost: Callable[[ConnectionId, str], None],
        routes: Sequence[tuple[str, Route]] = (),
        actions: Sequence[tuple[str, Action]] = (),
        channel: Channel | None = None,
    ) -> None:
        """Prepare; `start` listens.

        Args:
            rules: limits of frames, and the durations from which the patience with a node that is not admitted follows.
            on_message: called with connection, message and the peer's address (no port). Must not wait. An error that it
                raises goes to the loop's exception handler, and the connection is closed.
            on_lost: called exactly once for each connection that has delivered a message, with a reason for people; also for
                those that `close_connection` or `stop` closes. Never from inside `send` or `close_connection`.
            routes: inspection paths and what answers them; `/healthz` is always there.
            actions: what a `POST` of a path does; from this host only.
            channel: the secure channel's listening side; None: plain text.
        """
        self._rules, self._on_message, self._on_lost = rules, on_message, on_lost
        self._routes: dict[str, Route] = {"/healthz": healthz, **dict(routes)}
        self._actions = dict(actions)
        self._channel = channel
        self._acceptor: TlsAcceptor | None = None
        self._watch: asyncio.Task[None] | None = None
        self._silence_s = (rules.lease_ms + rules.rejoin_window_ms) / 1000
        """A refused worker may wait out a whole window before it asks again on the same connection."""
        self._delivering = asyncio.Event()
        self._delivering.set()
        self._rejections = RejectionLog()
        self._connections: dict[ConnectionId, Connection] = {}
        self._serving: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count(1)
        self._limiter: ConnectionLimiter | None = None
        self._listeners: list[asyncio.Server] = []

    @property
    def connection_count(self) -> int:
        """Open worker connections, registered or not."""
        return len(self._connections)

    @property
    def on_loopback(self) -> bool:
        """Whether only processes of this host can reach it."""
        addresses = [each.getsockname()[0] for listener in self._listeners for each in listener.sockets]
        return all(ipaddress.ip_address(address).is_loopback for address in addresses)

    async def start(self, host: str, port: int) -> int:
        """Listen on every address of `host`; returns the bound port (`port` 0: any free one).

        Raises:
            PortInUseError: somebody else listens there, or this user may not.
            HostUnusableError: `host` does not resolve, or is no address of this machine.
        """
        assert self._limiter is None, "a server is started once"
        sockets = await listening_sockets(host, port)
        bound_port = int(sockets[0].getsockname()[1])
        nodes = self._rules.worker_count + self._rules.server_count
        self._limiter = ConnectionLimiter(self._answer, self._rejections, nodes=nodes)
        loop = asyncio.get_running_loop()
        accept: Callable[[], asyncio.Protocol] = self._limiter
        if self._channel is not None:
            # The cryptography is loaded where there is TLS only: 50 ms.
            from recovery.transport.peer_certificates import watch  # noqa: PLC0415
            from recovery.transport.tls_acceptor import TlsAcceptor  # noqa: PLC0415

            accept = self._acceptor = TlsAcceptor(self._channel, self._limiter, self._rejections)
            self._watch = loop.create_task(watch(self._channel, self._connections))
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
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
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

    def identity_of(self, connection: ConnectionId) -> Identity | None:
        """Whom the certificate of a connection names; None: no TLS, or a certificate that names nobody."""
        found = self._connections.get(connection)
        return found.certificate.identity if found is not None and found.certificate is not None else None

    def pause_delivery(self) -> None:
        """Deliver no message until `resume_delivery`: each connection keeps one, the others wait in its socket, and their sender waits."""
        self._delivering.clear()

    def resume_delivery(self) -> None:
        """Deliver messages again, of each connection in the order in which they came."""
        self._delivering.set()

    def close_connection(self, connection: ConnectionId, reason: str) -> None:
        """Close a connection after what was queued before; what it sends from now on is dropped."""
        found = self._connections.get(connection)
        if found is not None:
            found.finish(reason)

    def admitted(self, connection: ConnectionId) -> None:
        """The peer is a node now: the larger frame limit holds, and the limits for unregistered peers do not."""
        found = self._connections.get(connection)
        if found is not None and self._limiter is not None:
            found.admitted = True
            self._limiter.release(found.request.protocol)

    def refused_for_now(self, connection: ConnectionId) -> None:
        """The peer was answered and waits: it does not count among those who wait for an answer. The caller bounds how many there are."""
        found = self._connections.get(connection)
        if found is not None and self._limiter is not None:
            self._limiter.answered(found.request.protocol)

    # --- one request ---------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._limiter is not None, "requests come in only after start"
        if not self._limiter.request_received(request.protocol):
            self._rejections.note(
                request.remote or "unknown", "too many connections that have not registered"
            )
            return _text(503, "too many connections that have not registered; try again in a second")
        if request.path == CLUSTER_PATH:
            return await self._serve(request)
        action = self._actions.get(request.path)
        if action is not None and request.method == "POST":
            return await self._act(request, action)
        route = self._routes.get(request.path)
        if route is None:
            self._rejections.note(request.remote or "unknown", "asked for a path that does not exist")
            return _text(404, f"no such path; there is {', '.join(sorted(self._routes))}")
        if request.method not in ("GET", "HEAD"):
            return _text(405, "only GET")
        try:
            body, content_type = route()
        except Exception:
            # A view that fails must not end what it views.
            _logger.exception("event=inspection_failed path=%s", request.path)
            return _text(500, "this view failed, see the scheduler's log")
        response = web.Response(body=body, content_type=content_type)
        response.force_close()
        return response

    async def _act(self, request: web.BaseRequest, action: Action) -> web.Response:
        """Change something for whoever could as well send signals to the processes here: nobody else is known yet."""
        own = request.transport.get_extra_info("sockname") if request.transport is not None else None
        if own is None or request.remote != own[0] or "Origin" in request.headers:
            self._rejections.note(request.remote or "unknown", f"asked for {request.path} from elsewhere")
            return _text(403, "only for processes of the scheduler's own host, and not for browsers")
        length = request.content_length
        if length is None or length > ACTION_BYTES_MAX:
            return _text(413, f"a body of at most {ACTION_BYTES_MAX} bytes, and its length")
        status, answer = action(await request.content.readexactly(length))
        content, content_type = json_body(answer)
        response = web.Response(status=status, body=content, content_type=content_type)
        response.force_close()
        return response

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        # Only browsers send it, and a web page must not reach a cluster on localhost.
        if "Origin" in request.headers:
            self._rejections.note(request.remote or "unknown", "a browser asked for a worker's connection")
            return _text(403, "not for browsers")
        number = ConnectionId(next(self._numbers))
        certificate: PeerCertificate | None = None
        try:
            if self._channel is not None:
                from recovery.transport.peer_certificates import certificate_of  # noqa: PLC0415 - as in start

                certificate = certificate_of(request, self._channel)
        except RecoveryError as error:
            self._rejections.note(request.remote or "unknown", str(error))
            return _text(403, error.code)
        connection = Connection(
            number, request, frame_bytes_max=self._rules.frame_bytes_max, certificate=certificate
        )
        if not connection.socket.can_prepare(request):
            self._rejections.note(connection.peer, "no WebSocket request")
            return _text(426, "workers speak WebSocket here")
        if not await connection.open():
            return _text(400, "gone")
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
            self._limiter.message_received(connection.request.protocol, self._silence_s, connection.cut_off)
        if connection.certificate is not None and self._refused(connection, message):
            return
        # In a loop: one of those that waited may fill the queue again before the next one runs.
        while not self._delivering.is_set():
            await self._delivering.wait()
        if not connection.closing:
            connection.delivered = True
            self._on_message(connection.number, message, connection.peer)

    def _refused(self, connection: Connection, message: FromNode) -> bool:
        """Whether the certificate names somebody else than the message does: it is answered, and has no effect."""
        from recovery.transport.peer_certificates import refusal_of  # noqa: PLC0415 - as in start

        refusal = refusal_of(connection.certificate, message)
        if refusal is None:
            return False
        self._rejections.note(connection.peer, f"{refusal.code}: {refusal.reason}")
        self.send(connection.number, refusal)
        connection.finish(refusal.code)
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


def _text(status: int, text: str) -> web.Response:
    response = web.Response(status=status, text=f"{text}\n")
    response.force_close()
    return response


def _report(what: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})
