from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from recovery.core.messages import FromScheduler, HeartbeatAck
from recovery.transport import outbox
from recovery.transport.client import Client, ConnectError
from tests.transport.wire import (
    HOST,
    RULES,
    WAIT_S,
    Node,
    Receiver,
    heartbeat,
    register,
    run,
    serving,
    until,
)


async def refused(port: int, host: str = HOST, timeout_s: float = WAIT_S) -> str:
    lost: list[str] = []
    client = Client(host=host, port=port, rules=RULES, on_message=print, on_lost=lost.append)
    with pytest.raises(ConnectError) as caught:
        await client.connect(timeout_s)
    assert client.fileno is None
    assert lost == []
    assert isinstance(caught.value, OSError)
    return caught.value.reason


def test_a_port_where_nobody_listens_is_named() -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        port = holder.getsockname()[1]

        assert f"{HOST}:{port}" in run(refused(port))


def test_a_host_that_does_not_resolve_is_named() -> None:
    assert "no-such-host.invalid" in run(refused(1, "no-such-host.invalid"))


def test_a_scheduler_that_does_not_answer_is_given_up_in_time() -> None:
    async def main() -> None:
        with socket.create_server((HOST, 0)) as silent:
            assert await refused(silent.getsockname()[1], timeout_s=0.2) == "no answer within 0.2 s"

    run(main())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "what answers there is no scheduler of ours (HTTP 404)",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "what answers there is no scheduler of ours (HTTP 200)",
        ),
        (
            b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
            "the scheduler has too many connections that have not registered (HTTP 503)",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "what answers there is no scheduler of ours (HTTP 400)"),
        (b"", "Server disconnected"),
    ],
    ids=["404", "200", "503", "ssh", "closes"],
)
def test_what_is_no_scheduler_is_named(answer: bytes, reason: str) -> None:
    async def main() -> None:
        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()
            await writer.wait_closed()

        other = await asyncio.start_server(reply, HOST, 0)
        assert reason in await refused(other.sockets[0].getsockname()[1])
        other.close()
        await other.wait_closed()

    run(main())


def test_a_message_without_a_connection_is_dropped() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = Node(port)
            node.client.send(heartbeat())
            await node.join()

            assert [message for _, message, _ in receiver.messages] == [register()]
            await node.client.close()
            node.client.send(heartbeat())
            await node.client.close()

    run(main())


def place(node: Node) -> tuple[str | None, int | None, int | None]:
    return node.client.local_host, node.client.fileno, node.client.socket_inode


def test_the_connection_knows_its_own_address_and_socket() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            node = Node(port)
            assert place(node) == (None, None, None)
            await node.join()

            descriptor = node.client.fileno
            assert descriptor is not None
            assert node.client.local_host == HOST
            assert os.fstat(descriptor).st_ino == node.client.socket_inode
            await node.client.close()
            assert place(node) == (None, None, None)

    run(main())


def test_the_end_of_the_scheduler_is_reported_once_and_the_client_connects_again() -> None:
    async def main() -> None:
        receiver = Receiver()
        port = await receiver.server.start(HOST, 0)
        node = Node(port)
        await node.join()
        await receiver.server.stop()
        await until(lambda: node.lost)
        assert node.client.fileno is None
        assert node.lost == ["the scheduler closed the connection: the scheduler stops"]

        again = Receiver()
        await again.server.start(HOST, port)
        node.messages.clear()
        await node.join()
        assert len(node.lost) == 1
        await node.client.close()
        await again.server.stop()

    run(main())


def test_a_broken_socket_is_reported_once() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = Node(port)
            await node.join()
            raw = receiver.server._connections[receiver.messages[0][0]].request.transport
            assert raw is not None
            raw.abort()
            await until(lambda: node.lost and not receiver.server._connections)

            assert node.lost == ["connection closed"]
            assert len(receiver.lost) == 1

    run(main())


def test_close_is_not_reported_as_a_loss() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = Node(port)
            await node.join()
            await node.client.close()
            await until(lambda: receiver.lost)

            assert node.lost == []

    run(main())


def test_connect_closes_the_connection_before() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = Node(port)
            await node.join()
            await node.client.connect(WAIT_S)
            await until(lambda: receiver.lost)

            assert node.lost == []
            assert len(receiver.server._connections) == 1
            await node.client.close()

    run(main())


async def pretend_scheduler(frames: bytes) -> tuple[asyncio.Server, int]:
    """Answers the handshake as a WebSocket server does, sends `frames`, then reads nothing."""
    import base64
    import hashlib

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(
            line.split(": ")[1]
            for line in asked.split("\r\n")
            if line.lower().startswith("sec-websocket-key")
        )
        digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        accept = base64.b64encode(digest).decode()
        writer.write(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        writer.write(frames)
        await reader.read(1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as a writer
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    made = await asyncio.start_server(reply, HOST, 0, limit=1_000)
    made.ended = ended  # type: ignore[attr-defined]  # ours, see `end`
    return made, made.sockets[0].getsockname()[1]


async def end(pretended: asyncio.Server) -> None:
    pretended.ended.set()  # type: ignore[attr-defined]  # ours
    pretended.close()
    await pretended.wait_closed()
    await until(lambda: len(asyncio.all_tasks()) == 1)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x82\x01\xc1", "no message of ours"),
        (b"\x81\x02{}", "connection"),
        (b"\xff\xff", "connection lost"),
    ],
    ids=["not msgpack", "text", "no frame"],
)
def test_what_no_scheduler_sends_ends_the_connection(frame: bytes, reason: str) -> None:
    async def main() -> None:
        pretended, port = await pretend_scheduler(frame)
        node = Node(port)
        await node.client.connect(WAIT_S)
        await until(lambda: node.lost)

        assert reason in node.lost[0]
        assert node.messages == []
        await end(pretended)

    run(main())


def test_a_scheduler_that_does_not_read_is_left_and_close_does_not_wait_for_it() -> None:
    async def main() -> None:
        pretended, port = await pretend_scheduler(b"")
        node = Node(port)
        await node.client.connect(WAIT_S)
        long = register(host="h" * 1_000)
        for _ in range(100_000):
            node.client.send(long)
            if node.client.fileno is None:
                break
            if node.client._connection is not None and len(node.client._connection.outbox._frames) > 100:
                await asyncio.sleep(0)
        await until(lambda: node.lost)
        assert len(node.lost) == 1

        await node.client.connect(WAIT_S)
        for _ in range(outbox.MESSAGES_MAX):
            node.client.send(long)
        # It would not read for ever.
        await asyncio.wait_for(node.client.close(), WAIT_S)
        await end(pretended)

    run(main())


def test_an_error_of_the_receiver_reaches_the_loops_owner_and_ends_the_connection() -> None:
    async def main() -> None:
        errors: list[str] = []
        lost: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: errors.append(str(context["exception"]))
        )

        def on_message(message: FromScheduler) -> None:
            assert isinstance(message, HeartbeatAck), "an invariant is broken"

        async with serving() as (_, port):
            client = Client(host=HOST, port=port, rules=RULES, on_message=on_message, on_lost=lost.append)
            await client.connect(WAIT_S)
            client.send(register())
            await until(lambda: lost)

        assert [error.splitlines()[0] for error in errors] == ["an invariant is broken"]

    run(main())


def test_the_module_is_imported_without_aiohttp() -> None:
    code = "import sys, recovery.transport.client; sys.exit('aiohttp' in sys.modules or 'recovery.transport.server' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
