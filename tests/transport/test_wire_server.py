from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from recovery.core.ids import ConnectionId, RequestId, RunId
from recovery.core.messages import Committed, FromNode, JobEnded, JobOutcome, Leave, Register
from recovery.core.rules import Rules
from recovery.transport import outbox
from recovery.transport.codec import encode
from recovery.transport.server import Server
from tests.transport.wire import (
    HANDSHAKE,
    HOST,
    Hearing,
    Node,
    admitted,
    heartbeat,
    in_thread,
    masked_frame,
    plain_socket,
    register,
    run,
    serving,
    until,
)

LEAVE = Leave(request_id=RequestId("r-2"), reason="done")


def test_a_node_registers_and_is_answered() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            node = Node(port)
            await node.join()

            (connection, message, peer), *_ = hearing.messages
            assert (message, peer) == (register(), HOST)
            assert node.messages == [admitted()]
            assert hearing.server.connection_count == 1
            raw = hearing.server._connections[connection].request.transport
            assert raw is not None
            assert raw.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            await node.client.close()

    run(main())


def test_messages_keep_their_order_both_ways() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            node = Node(port)
            await node.join()
            for number in range(200):
                node.client.send(heartbeat(number))
            await until(lambda: len(node.messages) == 201)

            assert [m.sequence for m in node.messages[1:]] == list(range(200))  # type: ignore[union-attr]  # all are acks
            await node.client.close()

    run(main())


def test_connection_numbers_are_never_used_twice() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            for _ in range(3):
                node = Node(port)
                await node.join()
                await node.client.close()
            await until(lambda: len(hearing.lost) == 3)

            assert len({connection for connection, _ in hearing.lost}) == 3

    run(main())


def test_the_last_word_before_a_close_is_heard_before_the_loss_is_told() -> None:
    async def main() -> None:
        told: list[str] = []

        def hear(connection: ConnectionId, message: FromNode, peer: str) -> None:
            told.append(type(message).__name__)
            server.admitted(connection)
            server.send(connection, admitted())

        server = Server(rules=Rules(worker_count=1), on_message=hear, on_lost=lambda *_: told.append("lost"))
        port = await server.start(HOST, 0)
        for _ in range(30):
            told.clear()
            node = Node(port)
            await node.client.connect(5)
            node.client.send(register())
            node.client.send(LEAVE)
            await node.client.close()
            await until(lambda: "lost" in told)
            assert told == ["Register", "Leave", "lost"]
        await server.stop()

    run(main())


CHILD = """
import asyncio, sys
from recovery.transport.client import Client
from tests.transport.wire import RULES, register

async def main():
    client = Client(host="127.0.0.1", port=int(sys.argv[1]), rules=RULES, on_message=print, on_lost=print)
    await client.connect(10)
    client.send(register())
    await asyncio.sleep(60)

asyncio.run(main())
"""


def start_child(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(port)], stdout=subprocess.DEVNULL)


def test_the_loss_of_a_killed_process_is_told_once_and_at_once() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            child = start_child(port)
            try:
                await until(lambda: hearing.messages, "the child's registration")
                killed_at = asyncio.get_running_loop().time()
                child.send_signal(signal.SIGKILL)
                await until(lambda: hearing.lost)
                took_s = asyncio.get_running_loop().time() - killed_at
            finally:
                child.kill()
                child.wait()

            assert took_s < 1.0  # milliseconds; the bound is for a busy machine
            assert hearing.lost == [(hearing.messages[0][0], "connection closed")]
            assert hearing.server.connection_count == 0

    run(main())


def test_a_connection_that_never_delivered_a_message_is_not_told() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            node = Node(port)
            await node.client.connect(5)
            await until(lambda: hearing.server.connection_count == 1)
            await node.client.close()
            await until(lambda: hearing.server.connection_count == 0)

            assert hearing.lost == []

    run(main())


def test_close_connection_sends_what_was_queued_and_says_why() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            node = Node(port)
            await node.join()
            connection = hearing.messages[0][0]
            ended = JobEnded(outcome=JobOutcome.FINISHED, reason="all steps done")
            for _ in range(100):
                hearing.server.send(connection, ended)
            hearing.server.close_connection(connection, "the job is over")
            hearing.server.send(connection, ended)
            await until(lambda: node.lost and hearing.lost)

            assert node.messages == [admitted(), *[ended] * 100]
            assert node.lost == ["the scheduler closed the connection: the job is over"]
            assert hearing.lost == [(connection, "the job is over")]

    run(main())


def test_a_closed_or_unknown_connection_is_ignored() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            node = Node(port)
            await node.join()
            connection = hearing.messages[0][0]
            await node.client.close()
            await until(lambda: hearing.lost)
            for number in (connection, ConnectionId(999)):
                hearing.server.send(number, admitted())
                hearing.server.admitted(number)
                hearing.server.close_connection(number, "again")

            assert len(hearing.lost) == 1

    run(main())


def stuck_node(port: int) -> socket.socket:
    """Registers and never reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    made.connect((HOST, port))
    made.sendall(HANDSHAKE + masked_frame(encode(register("stuck"))))
    return made


def test_a_peer_that_does_not_read_is_cut_off_and_nobody_else_notices() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            stuck = await in_thread(lambda: stuck_node(port))
            await until(lambda: hearing.messages)
            slow = hearing.messages[0][0]
            node = Node(port)
            await node.join()
            long = admitted(job="j" * 1_000)
            sent = 0
            while not hearing.lost and sent < 100_000:
                hearing.server.send(slow, long)
                sent += 1
                if sent % 64 == 0:
                    await asyncio.sleep(0)
            await until(lambda: hearing.lost)
            node.client.send(heartbeat())
            await until(lambda: len(node.messages) == 2)

            assert sent > outbox.MESSAGES_MAX
            assert hearing.lost == [(slow, "it does not read what it is sent")]
            stuck.close()
            await node.client.close()

    run(main())


def test_the_outbox_is_bounded_in_messages_and_in_bytes() -> None:
    async def main() -> None:
        many, large = outbox.Outbox(), outbox.Outbox()

        assert [many.put(b"x") for _ in range(outbox.MESSAGES_MAX + 1)] == [True] * outbox.MESSAGES_MAX + [
            False
        ]
        assert [large.put(bytes(1 << 20)) for _ in range(5)] == [True] * 4 + [False]

    run(main())


@pytest.mark.parametrize(("size", "passes"), [(65_536, True), (65_537, False)])
def test_before_admission_a_message_may_have_64_kib(size: int, passes: bool) -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            hearing.admits = False
            with await in_thread(lambda: plain_socket(port)) as peer:
                await in_thread(lambda: peer.sendall(HANDSHAKE + masked_frame(padded(size))))
                await until(lambda: hearing.messages if passes else hearing.server.connection_count == 0)

                assert len(hearing.messages) == passes
                assert hearing.lost == []

    run(main())


@pytest.mark.parametrize(("size", "passes"), [(1_048_576, True), (1_048_577, False)])
def test_after_admission_a_message_may_have_1_mib(size: int, passes: bool) -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            with await in_thread(lambda: plain_socket(port)) as peer:
                await in_thread(lambda: peer.sendall(HANDSHAKE + masked_frame(encode(register()))))
                await until(lambda: hearing.messages)
                await in_thread(lambda: peer.sendall(masked_frame(padded(size))))
                await until(lambda: len(hearing.messages) == 2 if passes else hearing.lost)

                assert len(hearing.messages) == 1 + passes
                assert [reason[:25] for _, reason in hearing.lost] == (
                    [] if passes else ["it sent a broken WebSocket"[:25]]
                )

    run(main())


def padded(size: int) -> bytes:
    """A valid heartbeat of exactly `size` bytes: unknown fields are legal, so that releases can differ."""
    plain: dict[str, Any] = {"type": "heartbeat", **msgspec.structs.asdict(heartbeat()), "pad": b""}
    short = len(msgspec.msgpack.encode({**plain, "pad": bytes(70_000)})) - 70_000
    plain["pad"] = bytes(size - short)
    frame = msgspec.msgpack.encode(plain)
    if len(frame) != size:  # the length field itself is shorter below 64 KiB
        plain["pad"] = bytes(size - short + size - len(frame))
        frame = msgspec.msgpack.encode(plain)
    assert len(frame) == size
    return frame


def test_an_error_of_the_receiver_reaches_the_loops_owner_and_costs_one_connection() -> None:
    async def main() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

        def hear(connection: ConnectionId, message: FromNode, peer: str) -> None:
            if isinstance(message, Leave):
                raise AssertionError("an invariant is broken")
            server.send(connection, admitted())

        lost: list[str] = []
        server = Server(
            rules=Rules(worker_count=1), on_message=hear, on_lost=lambda _, reason: lost.append(reason)
        )
        port = await server.start(HOST, 0)
        one, other = Node(port), Node(port)
        await one.join()
        await other.join()
        one.client.send(LEAVE)
        await until(lambda: one.lost)
        other.client.send(heartbeat())
        await until(lambda: len(other.messages) == 2)

        assert [str(context["exception"]) for context in errors] == ["an invariant is broken"]
        assert len(lost) == 1
        await other.client.close()
        await server.stop()

    run(main())


def test_stop_delivers_what_is_queued_tells_every_loss_once_and_frees_the_port() -> None:
    async def main() -> None:
        hearing = Hearing()
        port = await hearing.server.start(HOST, 0)
        nodes = [Node(port) for _ in range(3)]
        for node in nodes:
            await node.join()
        committed = Committed(run=RunId(1), step=7)
        for connection, _, _ in hearing.messages:
            hearing.server.send(connection, committed)
        await hearing.server.stop()
        await until(lambda: all(node.lost for node in nodes))

        assert [node.messages[-1] for node in nodes] == [committed] * 3
        assert sorted(hearing.lost) == [
            (connection, "the scheduler stops") for connection, _, _ in hearing.messages
        ]
        assert hearing.server.connection_count == 0

        again = Hearing()
        assert await again.server.start(HOST, port) == port
        await nodes[0].client.connect(5)
        nodes[0].client.send(register())
        await until(lambda: again.messages)
        assert isinstance(again.messages[0][1], Register)
        await nodes[0].client.close()
        await again.server.stop()

    run(main())


def test_stop_does_not_wait_for_peers_that_do_nothing() -> None:
    async def main() -> None:
        hearing = Hearing()
        port = await hearing.server.start(HOST, 0)
        stuck = await in_thread(lambda: stuck_node(port))
        silent = await in_thread(lambda: plain_socket(port))
        await until(lambda: hearing.messages)
        for _ in range(200):
            hearing.server.send(hearing.messages[0][0], admitted(job="j" * 1_000))
        began = asyncio.get_running_loop().time()
        await hearing.server.stop()

        assert asyncio.get_running_loop().time() - began < 4.0
        assert len(hearing.lost) == 1
        stuck.close()
        silent.close()

    run(main())


def test_stop_of_a_server_that_never_started_does_nothing() -> None:
    run(Hearing().server.stop())
