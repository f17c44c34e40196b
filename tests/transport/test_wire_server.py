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
    WAIT_S,
    Node,
    Receiver,
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
        async with serving() as (receiver, port):
            node = Node(port)
            await node.join()

            (connection, message, peer), *_ = receiver.messages
            assert (message, peer) == (register(), HOST)
            assert node.messages == [admitted()]
            assert len(receiver.server._connections) == 1
            raw = receiver.server._connections[connection].request.transport
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
        async with serving() as (receiver, port):
            for _ in range(3):
                node = Node(port)
                await node.join()
                await node.client.close()
            await until(lambda: len(receiver.lost) == 3)

            assert len({connection for connection, _ in receiver.lost}) == 3

    run(main())


def test_the_last_message_before_a_close_is_delivered_before_the_loss_is_reported() -> None:
    async def main() -> None:
        reported: list[str] = []

        def on_message(connection: ConnectionId, message: FromNode, peer: str) -> None:
            reported.append(type(message).__name__)
            server.admitted(connection)
            server.send(connection, admitted())

        server = Server(
            rules=Rules(worker_count=1), on_message=on_message, on_lost=lambda *_: reported.append("lost")
        )
        port = await server.start(HOST, 0)
        for _ in range(30):
            reported.clear()
            node = Node(port)
            await node.client.connect(WAIT_S)
            node.client.send(register())
            node.client.send(LEAVE)
            await node.client.close()
            await until(lambda: "lost" in reported)
            assert reported == ["Register", "Leave", "lost"]
        await server.stop()

    run(main())


CHILD = """
import asyncio, sys
from recovery.transport.client import Client
from tests.transport.wire import RULES, register

async def main():
    client = Client(host="127.0.0.1", port=int(sys.argv[1]), rules=RULES, on_message=print, on_lost=print)
    await client.connect(60)
    client.send(register())
    await asyncio.sleep(3_600)

asyncio.run(main())
"""


def start_child(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(port)], stdout=subprocess.DEVNULL)


def test_the_loss_of_a_killed_process_is_reported_once_and_by_the_end_of_its_connection() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            child = start_child(port)
            try:
                await until(lambda: receiver.messages, "the child's registration")
                child.send_signal(signal.SIGKILL)
                await until(lambda: receiver.lost)
            finally:
                child.kill()
                child.wait()

            # Not by its silence, which is noticed much later.
            assert receiver.lost == [(receiver.messages[0][0], "connection closed")]
            assert len(receiver.server._connections) == 0

    run(main())


def test_the_end_of_a_connection_that_never_delivered_a_message_is_not_reported() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = Node(port)
            await node.client.connect(WAIT_S)
            await until(lambda: len(receiver.server._connections) == 1)
            await node.client.close()
            await until(lambda: len(receiver.server._connections) == 0)

            assert receiver.lost == []

    run(main())


def test_close_connection_sends_what_was_queued_and_the_reason() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = Node(port)
            await node.join()
            connection = receiver.messages[0][0]
            ended = JobEnded(outcome=JobOutcome.FINISHED, reason="all steps done")
            for _ in range(100):
                receiver.server.send(connection, ended)
            receiver.server.close_connection(connection, "the job is over")
            receiver.server.send(connection, ended)
            await until(lambda: node.lost and receiver.lost)

            assert node.messages == [admitted(), *[ended] * 100]
            assert node.lost == ["the scheduler closed the connection: the job is over"]
            assert receiver.lost == [(connection, "the job is over")]

    run(main())


def test_a_closed_or_unknown_connection_is_ignored() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = Node(port)
            await node.join()
            connection = receiver.messages[0][0]
            await node.client.close()
            await until(lambda: receiver.lost)
            for number in (connection, ConnectionId(999)):
                receiver.server.send(number, admitted())
                receiver.server.admitted(number)
                receiver.server.close_connection(number, "again")

            assert len(receiver.lost) == 1

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
        async with serving() as (receiver, port):
            stuck = await in_thread(lambda: stuck_node(port))
            await until(lambda: receiver.messages)
            slow = receiver.messages[0][0]
            node = Node(port)
            await node.join()
            long = admitted(job="j" * 1_000)
            sent = 0
            while not receiver.lost and sent < 100_000:
                receiver.server.send(slow, long)
                sent += 1
                if sent % 64 == 0:
                    await asyncio.sleep(0)
            await until(lambda: receiver.lost)
            node.client.send(heartbeat())
            await until(lambda: len(node.messages) == 2)

            assert sent > outbox.MESSAGES_MAX
            assert receiver.lost == [(slow, "it does not read what it is sent")]
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
        async with serving() as (receiver, port):
            receiver.admits = False
            with await in_thread(lambda: plain_socket(port)) as peer:
                await in_thread(lambda: peer.sendall(HANDSHAKE + masked_frame(padded(size))))
                await until(lambda: receiver.messages if passes else len(receiver.server._connections) == 0)

                assert len(receiver.messages) == passes
                assert receiver.lost == []

    run(main())


@pytest.mark.parametrize(("size", "passes"), [(1_048_576, True), (1_048_577, False)])
def test_after_admission_a_message_may_have_1_mib(size: int, passes: bool) -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            with await in_thread(lambda: plain_socket(port)) as peer:
                await in_thread(lambda: peer.sendall(HANDSHAKE + masked_frame(encode(register()))))
                await until(lambda: receiver.messages)
                await in_thread(lambda: peer.sendall(masked_frame(padded(size))))
                await until(lambda: len(receiver.messages) == 2 if passes else receiver.lost)

                assert len(receiver.messages) == 1 + passes
                assert [reason[:25] for _, reason in receiver.lost] == (
                    [] if passes else ["it sent a broken WebSocket"[:25]]
                )

    run(main())


def padded(size: int) -> bytes:
    """A valid heartbeat of exactly `size` bytes: unknown fields are legal, so that releases can differ."""
    plain: dict[str, Any] = {"type": "heartbeat", **msgspec.structs.asdict(heartbeat()), "pad": b""}
    short = len(msgspec.msgpack.encode({**plain, "pad": bytes(70_000)})) - 70_000
    plain["pad"] = bytes(size - short)
    frame = msgspec.msgpack.encode(plain)
    # The length field itself is shorter below 64 KiB.
    if len(frame) != size:
        plain["pad"] = bytes(size - short + size - len(frame))
        frame = msgspec.msgpack.encode(plain)
    assert len(frame) == size
    return frame


def test_an_error_of_the_receiver_reaches_the_loops_owner_and_costs_one_connection() -> None:
    async def main() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

        def on_message(connection: ConnectionId, message: FromNode, peer: str) -> None:
            if isinstance(message, Leave):
                raise AssertionError("an invariant is broken")
            server.send(connection, admitted())

        lost: list[str] = []
        server = Server(
            rules=Rules(worker_count=1), on_message=on_message, on_lost=lambda _, reason: lost.append(reason)
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


def test_stop_delivers_what_is_queued_reports_every_loss_once_and_frees_the_port() -> None:
    async def main() -> None:
        receiver = Receiver()
        port = await receiver.server.start(HOST, 0)
        nodes = [Node(port) for _ in range(3)]
        for node in nodes:
            await node.join()
        committed = Committed(run=RunId(1), step=7)
        for connection, _, _ in receiver.messages:
            receiver.server.send(connection, committed)
        await receiver.server.stop()
        await until(lambda: all(node.lost for node in nodes))

        assert [node.messages[-1] for node in nodes] == [committed] * 3
        assert sorted(receiver.lost) == [
            (connection, "the scheduler stops") for connection, _, _ in receiver.messages
        ]
        assert len(receiver.server._connections) == 0

        again = Receiver()
        assert await again.server.start(HOST, port) == port
        await nodes[0].client.connect(WAIT_S)
        nodes[0].client.send(register())
        await until(lambda: again.messages)
        assert isinstance(again.messages[0][1], Register)
        await nodes[0].client.close()
        await again.server.stop()

    run(main())


@pytest.mark.usefixtures("patient")
def test_stop_does_not_wait_for_peers_that_do_nothing() -> None:
    async def main() -> None:
        receiver = Receiver()
        port = await receiver.server.start(HOST, 0)
        stuck = await in_thread(lambda: stuck_node(port))
        silent = await in_thread(lambda: plain_socket(port))
        await until(lambda: receiver.messages)
        for _ in range(200):
            receiver.server.send(receiver.messages[0][0], admitted(job="j" * 1_000))
        # They would do nothing for an hour.
        await asyncio.wait_for(receiver.server.stop(), WAIT_S)

        assert len(receiver.lost) == 1
        stuck.close()
        silent.close()

    run(main())


def test_stop_of_a_server_that_never_started_does_nothing() -> None:
    run(Receiver().server.stop())
