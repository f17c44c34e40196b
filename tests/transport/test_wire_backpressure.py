"""A server that pauses delivery: what its peers send waits, one message each, and is delivered in order."""

from __future__ import annotations

import asyncio

from recovery.core.messages import Heartbeat, Register
from recovery.transport import connection_limiter
from tests.transport.wire import (
    HOST,
    WAIT_S,
    Node,
    Receiver,
    heartbeat,
    plain_socket,
    register,
    run,
    serving,
    until,
)


async def a_while(receiver: Receiver, port: int) -> None:
    """Long enough for what was sent to be read: three other connections came and were closed meanwhile."""
    for _ in range(3):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.close()
        await writer.wait_closed()


async def joined_before_a_pause(receiver: Receiver, port: int) -> Node:
    """A node that has joined; what it sends from now on waits."""
    node = Node(port)
    await node.join()
    receiver.server.pause_delivery()
    return node


def test_during_a_pause_nothing_is_delivered_and_afterwards_everything_in_order() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = await joined_before_a_pause(receiver, port)
            for sequence in range(1, 31):
                node.client.send(heartbeat(sequence))
            await a_while(receiver, port)
            assert len(receiver.messages) == 1

            receiver.server.resume_delivery()
            await until(lambda: len(node.messages) == 31, "every answer")
            beats = [message for _, message, _ in receiver.messages if isinstance(message, Heartbeat)]
            assert [beat.sequence for beat in beats] == list(range(1, 31))
            await node.client.close()

    run(main())


def test_a_node_whose_first_message_comes_during_a_pause_is_waited_for() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            first_message_s = connection_limiter.FIRST_MESSAGE_S
            receiver.server.pause_delivery()
            node = Node(port)
            await node.client.connect(WAIT_S)
            node.client.send(register())
            await until(
                lambda: _patience_s(receiver) > first_message_s, "the patience with a node that waits"
            )

            receiver.server.resume_delivery()
            await until(lambda: node.messages, "the admission")
            await node.client.close()

    run(main())


def test_a_message_of_a_peer_that_was_cut_off_during_a_pause_is_dropped() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = await joined_before_a_pause(receiver, port)
            node.client.send(heartbeat())
            await a_while(receiver, port)
            [(number, _, _)] = receiver.messages
            receiver.server.close_connection(number, "replaced by a newer connection")
            receiver.server.resume_delivery()
            await until(lambda: node.lost, "the end")

            assert [type(message) for _, message, _ in receiver.messages] == [Register]
            assert [reason for _, reason in receiver.lost] == ["replaced by a newer connection"]

    run(main())


def test_it_stops_during_a_pause() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            node = await joined_before_a_pause(receiver, port)
            node.client.send(heartbeat())
            with plain_socket(port):
                await a_while(receiver, port)
            await receiver.server.stop()
            await until(lambda: node.lost, "the end")
            assert len(receiver.server._connections) == 0

    run(main())


def _patience_s(receiver: Receiver) -> float:
    """How long the one connection that is not admitted may be silent from now on."""
    limiter = receiver.server._limiter
    assert limiter is not None
    deadlines = [each.deadline.when() for each in limiter._accepted.values() if each.deadline is not None]
    return max(deadlines, default=0.0) - asyncio.get_running_loop().time()
