"""The way through a handshake: in whatever pieces it comes, and beside peers that never finish theirs."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import socket
import ssl
import struct
from collections.abc import Coroutine
from typing import Any

import pytest

from recovery.tls.side import Side
from recovery.transport import tls_acceptor
from tests.tls.test_contexts import World
from tests.transport.test_wire_tls import channel, node, secure, world
from tests.transport.wire import HOST, Receiver, in_thread, plain_socket, run, until

__all__ = ["world"]


def _asked_at_once(world: World, port: int) -> bytes:
    """The client's last message of the handshake and its request in one packet."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream = channel(world, Side.CLIENT).context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    with plain_socket(port) as raw:
        while True:
            try:
                stream.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(65_536))
        stream.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        raw.sendall(outgoing.read())
        while True:
            try:
                return stream.read(1_000)
            except ssl.SSLWantReadError:
                incoming.write(raw.recv(65_536))


def test_a_handshake_in_single_bytes_is_read_whole(world: World) -> None:
    def dripped(port: int) -> str | None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        stream = channel(world, Side.CLIENT).context.wrap_bio(incoming, outgoing, server_hostname=HOST)
        with plain_socket(port) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                try:
                    stream.do_handshake()
                except ssl.SSLWantReadError:
                    said = outgoing.read()
                    raw.sendall(said[:1])
                    raw.sendall(said[1:2])
                    raw.sendall(said[2:])
                    heard = raw.recv(65_536)
                    if not heard:
                        return None
                    incoming.write(heard)
                else:
                    return stream.version()

    async def main() -> None:
        async with secure(world) as (_, port):
            assert await in_thread(lambda: dripped(port)) == "TLSv1.3"

    run(main())


def test_a_message_that_arrives_with_the_end_of_the_handshake_is_read(world: World) -> None:
    async def main() -> None:
        async with secure(world) as (_, port):
            answer = await in_thread(lambda: _asked_at_once(world, port))
            assert answer.startswith(b"HTTP/1.1 200")

    run(main())


@pytest.mark.usefixtures("patient")
def test_silent_handshakes_keep_no_worker_out(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_acceptor, "HANDSHAKES_BESIDE_NODES", 8)

    async def main() -> None:
        async with secure(world) as (_, port), contextlib.AsyncExitStack() as stack:
            for _ in range(40):
                stack.enter_context(plain_socket(port, "127.0.0.2"))
            worker = node(world, port)
            await worker.join("w0")
            await worker.client.close()

    run(main())
    assert "more than 9 handshakes are going on" in caplog.text


@pytest.mark.usefixtures("patient", "many_descriptors")
def test_a_worker_is_through_at_its_first_dial_behind_2000_silent_peers_of_its_own_address(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[ssl.SSLContext] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        start_tls = loop.start_tls

        def noted(
            transport: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext, **options: Any
        ) -> Coroutine[Any, Any, asyncio.Transport | None]:
            begun.append(context)
            return start_tls(transport, protocol, context, **options)

        monkeypatch.setattr(loop, "start_tls", noted)
        async with secure(world) as (receiver, port):
            first = node(world, port)
            await first.join("w0")
            await first.client.close()
            silent = [socket.socket() for _ in range(2_000)]
            for each in silent:
                each.setblocking(False)
                # They wait in the kernel's queue: nobody accepts while this loop is busy here.
                each.connect_ex((HOST, port))
            worker = node(world, port)
            await worker.join("w0")
            beside = tls_acceptor.HANDSHAKES_BESIDE_NODES
            assert acceptor_of(receiver)._count == beside, "the worker's place, and no deadline has made room"
            assert len(begun) == 2, "who says nothing costs no object of OpenSSL"
            await worker.client.close()
            for each in silent:
                each.close()

    run(main())


def test_a_peer_that_says_nothing_is_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        async with secure(world) as (_, port):

            def wait() -> bytes:
                with plain_socket(port) as raw, contextlib.suppress(ConnectionError):
                    return raw.recv(1)
                return b""

            assert await in_thread(wait) == b""

    run(main())
    assert "TLS_HANDSHAKE_TIMEOUT" in caplog.text


def test_what_is_silent_is_closed_when_the_server_stops(world: World) -> None:
    async def main() -> None:
        async with secure(world) as (receiver, port):
            with await in_thread(lambda: plain_socket(port)) as raw:
                await until(lambda: acceptor_of(receiver)._count, "a silent peer")
                await receiver.server.stop()
                with contextlib.suppress(ConnectionError):
                    assert await in_thread(lambda: raw.recv(1)) == b""

    run(main())


def test_a_handshake_that_is_not_finished_is_cut_off(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        async with secure(world) as (_, port):

            def drip() -> bytes:
                with plain_socket(port) as raw:
                    raw.sendall(b"\x16\x03\x01")
                    with contextlib.suppress(ConnectionError):
                        return raw.recv(1)
                    return b""

            assert await in_thread(drip) == b""

    run(main())
    assert "TLS_HANDSHAKE_TIMEOUT" in caplog.text


def _last_flight(world: World, port: int) -> tuple[socket.socket, bytes]:
    """A handshake of TLS 1.2 up to the client's last message, which is not sent yet."""
    context = channel(world, Side.CLIENT).context
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    raw = plain_socket(port)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(ssl.SSLWantReadError):
        stream.do_handshake()
    raw.sendall(outgoing.read())
    while not outgoing.pending:
        incoming.write(raw.recv(65_536))
        with contextlib.suppress(ssl.SSLWantReadError):
            stream.do_handshake()
    return raw, outgoing.read()


def test_a_peer_that_resets_behind_its_last_message_leaves_nothing(world: World) -> None:
    """The server reads the message, and its answer meets the reset: the handshake is through, and the socket closed."""

    async def main() -> None:
        async with secure(world) as (receiver, port):
            limiter = receiver.server._limiter
            assert limiter is not None
            for _ in range(3):
                raw, last = await in_thread(lambda: _last_flight(world, port))
                # Without a turn of the loop between them.
                raw.sendall(last)
                raw.close()
                await until(lambda: not acceptor_of(receiver)._count, "the end of the handshake")
            await until(lambda: not limiter._accepted, "nothing is left of it")

    run(main())


def test_a_handshake_that_cannot_begin_costs_no_socket(world: World) -> None:
    """As where asyncio refuses an argument."""

    async def main() -> None:
        said: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        async with secure(world) as (receiver, port):
            acceptor = acceptor_of(receiver)
            acceptor._channel = copy.copy(acceptor._channel)
            acceptor._channel.context = None  # type: ignore[assignment]  # no context at all
            with plain_socket(port) as raw:
                raw.sendall(b"x")
                assert await in_thread(lambda: _ended(raw))
            assert acceptor._count == 0
        assert [type(each["exception"]) for each in said] == [TypeError]

    asyncio.run(main())


def _ended(raw: socket.socket) -> bool:
    try:
        return raw.recv(1) == b""
    except ConnectionResetError:
        return True


def acceptor_of(receiver: Receiver) -> tls_acceptor.TlsAcceptor:
    assert receiver.server._acceptor is not None
    return receiver.server._acceptor
