"""A server that holds: what its peers say waits, one message each, and is delivered in order."""

from __future__ import annotations

import asyncio

from recovery.core.messages import Heartbeat, Register
from tests.transport.wire import HOST, Hearing, Node, heartbeat, plain_socket, register, run, serving, until


async def a_while(hearing: Hearing, port: int) -> None:
    """Long enough for what was sent to be read: a stranger came and was closed meanwhile."""
    for _ in range(3):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.close()
        await writer.wait_closed()


def test_while_it_holds_nothing_is_delivered_and_afterwards_everything_in_order() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            node = Node(port)
            await node.join()
            hearing.server.hold()
            for sequence in range(1, 31):
                node.client.send(heartbeat(sequence))
            await a_while(hearing, port)
            assert len(hearing.messages) == 1

            hearing.server.go_on()
            await until(lambda: len(node.messages) == 31, "every answer")
            beats = [message for _, message, _ in hearing.messages if isinstance(message, Heartbeat)]
            assert [beat.sequence for beat in beats] == list(range(1, 31))
            await node.client.close()

    run(main())


def test_who_says_its_first_word_while_it_holds_is_no_stranger() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            hearing.server.hold()
            node = Node(port)
            await node.client.connect(10.0)
            node.client.send(register())
            await until(lambda: _patience_s(hearing) > 10, "the patience with a node that waits")

            hearing.server.go_on()
            await until(lambda: node.messages, "the admission")
            await node.client.close()

    run(main())


def test_a_message_of_who_was_cut_off_while_it_held_is_dropped() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            node = Node(port)
            await node.join()
            hearing.server.hold()
            node.client.send(heartbeat())
            await a_while(hearing, port)
            [(number, _, _)] = hearing.messages
            hearing.server.close_connection(number, "replaced by a newer connection")
            hearing.server.go_on()
            await until(lambda: node.lost, "the end")

            assert [type(message) for _, message, _ in hearing.messages] == [Register]
            assert [reason for _, reason in hearing.lost] == ["replaced by a newer connection"]

    run(main())


def test_it_stops_while_it_holds() -> None:
    async def main() -> None:
        async with serving() as (hearing, port):
            node = Node(port)
            await node.join()
            hearing.server.hold()
            node.client.send(heartbeat())
            with plain_socket(port):
                await a_while(hearing, port)
            await hearing.server.stop()
            await until(lambda: node.lost, "the end")
            assert hearing.server.connection_count == 0

    run(main())


def _patience_s(hearing: Hearing) -> float:
    """How long the one connection that is not admitted may be silent from now on."""
    gate = hearing.server._gate
    assert gate is not None
    deadlines = [visit.deadline.when() for visit in gate._visits.values() if visit.deadline is not None]
    return max(deadlines, default=0.0) - asyncio.get_running_loop().time()
