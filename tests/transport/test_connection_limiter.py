"""More unregistered connections than are allowed, from a worker's own address too: they are closed, the worker's is not."""

from __future__ import annotations

import contextlib
import socket
from functools import partial

import pytest

from recovery.core.ids import ConnectionId
from recovery.core.principals import PrincipalKind
from recovery.core.rules import Rules
from recovery.transport import connection_limiter
from recovery.transport.access import Access
from recovery.transport.codec import encode
from recovery.transport.job_token import Authenticator, Caller, JobToken
from tests.transport.test_wire_hostile import works
from tests.transport.wire import (
    HANDSHAKE,
    HOST,
    WAIT_S,
    LoopTime,
    Node,
    admitted,
    in_thread,
    masked_frame,
    plain_socket,
    register,
    run,
    serving,
    until,
)


def half_open(port: int, source: str, *frames: bytes) -> socket.socket:
    """An unregistered peer that has asked for a worker's connection, and has sent `frames` behind that."""
    made = plain_socket(port, source)
    made.sendall(HANDSHAKE + b"".join(frames))
    return made


def test_beyond_256_beside_the_nodes_the_oldest_unregistered_connection_of_the_address_with_most_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limiter, "FIRST_MESSAGE_S", 3_600.0)

    async def main() -> None:
        async with serving() as (receiver, port):
            unregistered = []
            for number in range(1, 259):
                source = "127.0.0.3" if number <= 10 else "127.0.0.2"
                unregistered.append(await in_thread(partial(half_open, port, source)))
                await until(lambda number=number: len(receiver.server._connections) >= min(number, 257))  # type: ignore[misc]  # bound now

            assert receiver.server._limiter is not None
            waiting, newest = receiver.server._limiter._waiting, unregistered[-1].getsockname()
            of_busiest = waiting["127.0.0.2"]
            await until(
                lambda: newest in [one.transport.get_extra_info("peername") for one in of_busiest.values()]
            )
            assert {source: len(those) for source, those in waiting.items()} == {
                "127.0.0.3": 10,
                "127.0.0.2": 247,
            }
            assert await in_thread(lambda: read_until_closed(unregistered.pop(10))) == b"HTTP/1.1 101 "
            for each in unregistered:
                with each:
                    assert await in_thread(partial(each.recv, 13)) == b"HTTP/1.1 101 "
            await works(receiver, port)

    run(main())


def read_until_closed(peer: socket.socket) -> bytes:
    """The first bytes of an answer; asserts that the other side has closed behind it."""
    received = b""
    with contextlib.suppress(ConnectionError), peer:
        while piece := peer.recv(65_536):
            received += piece
    return received[:13]


def test_a_registration_beyond_all_nodes_of_the_job_is_answered_with_503() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            receiver.admits = False
            known = 1 + connection_limiter.BESIDE_NODES
            waiting = []
            for number in range(1, known + 1):
                frame = masked_frame(encode(register()))
                waiting.append(await in_thread(partial(half_open, port, "127.0.0.2", frame)))
                await until(lambda number=number: len(receiver.messages) == number)  # type: ignore[misc]  # bound now
            with await in_thread(lambda: plain_socket(port)) as late:
                late.sendall(HANDSHAKE)
                assert (await in_thread(lambda: late.recv(1_000))).startswith(b"HTTP/1.1 503 ")

            waiting.pop().close()
            await until(lambda: len(receiver.server._connections) == known - 1)
            receiver.admits = True
            receiver.messages.clear()
            await works(receiver, port)
            for each in waiting:
                each.close()

    run(main())


def test_whoever_was_refused_for_now_and_stays_takes_no_place_of_those_who_register() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            receiver.admits = False
            frame = masked_frame(encode(register()))
            staying = []
            for number in range(1, 2 + connection_limiter.BESIDE_NODES):
                staying.append(await in_thread(partial(half_open, port, "127.0.0.2", frame)))
                await until(lambda number=number: len(receiver.messages) == number)  # type: ignore[misc]  # bound now
                receiver.server.refused_for_now(receiver.messages[-1][0])
            # Asking again on the same connection takes a place for as long as the answer takes, once.
            for _ in range(3):
                staying[0].sendall(frame)
            await until(lambda: len(receiver.messages) == len(staying) + 3)
            receiver.server.refused_for_now(receiver.messages[-1][0])
            assert len(receiver.server._connections) == len(staying), "nobody was closed for another"
            receiver.server.refused_for_now(ConnectionId(10_000))

            receiver.admits = True
            receiver.messages.clear()
            await works(receiver, port)
            for each in staying:
                each.close()
            await until(lambda: len(receiver.server._connections) == 0)
            # What was given back is given back once: all places are there again.
            assert receiver.server._limiter is not None
            assert receiver.server._limiter._registering_count == 0

    run(main())


def test_whoever_stays_is_cut_off_when_it_is_silent_for_longer_than_any_wait() -> None:
    rules = Rules(worker_count=1, lease_ms=2_000_000, rejoin_window_ms=1_000_000)

    async def main() -> None:
        loop_time = LoopTime()
        async with serving(rules) as (receiver, port):
            receiver.admits = False
            node = Node(port)
            await node.client.connect(WAIT_S)
            node.client.send(register())
            await until(lambda: receiver.messages)
            connection = receiver.messages[0][0]
            receiver.server.refused_for_now(connection)
            for number in range(2, 6):
                await loop_time.forward(2_000)
                assert not receiver.lost, "each time that it asks again its wait begins anew"
                node.client.send(register())
                await until(lambda number=number: len(receiver.messages) == number)  # type: ignore[misc]  # bound now
            await loop_time.forward(2_000)
            assert not receiver.lost, "its patience is lease and window"
            await loop_time.forward(1_001)
            await until(lambda: receiver.lost, "the end of its patience")
            assert receiver.lost == [(connection, "not admitted and silent for 3000 s")]
            await node.client.close()

    run(main())


def test_whoever_stays_is_admitted_on_that_connection_and_then_kept() -> None:
    rules = Rules(worker_count=1, lease_ms=200_000, rejoin_window_ms=100_000)

    async def main() -> None:
        loop_time = LoopTime()
        async with serving(rules) as (receiver, port):
            receiver.admits = False
            node = Node(port)
            await node.client.connect(WAIT_S)
            node.client.send(register())
            await until(lambda: receiver.messages)
            connection = receiver.messages[0][0]
            receiver.server.refused_for_now(connection)
            receiver.server.admitted(connection)
            receiver.server.send(connection, admitted())
            await until(lambda: node.messages)
            await loop_time.forward(500)
            assert not receiver.lost, "no deadline is left of its wait"
            await node.client.close()

    run(main())


@pytest.mark.usefixtures("patient", "many_descriptors")
def test_a_good_worker_is_admitted_at_its_first_dial_beside_1500_unregistered_connections_of_its_own_address() -> (
    None
):
    async def main() -> None:
        async with serving() as (receiver, port):
            silent = [await in_thread(lambda: plain_socket(port)) for _ in range(1_000)]
            shaken = [await in_thread(partial(half_open, port, HOST)) for _ in range(500)]
            for _ in range(5):
                await works(receiver, port)
            limiter = receiver.server._limiter
            assert limiter is not None
            # No deadline has made room, and both floods still hold what they may.
            assert len(limiter._silent) > connection_limiter.BESIDE_NODES // 2
            assert limiter._waiting_count > connection_limiter.BESIDE_NODES // 2
            for each in (*silent, *shaken):
                each.close()

    run(main())


def test_a_message_that_is_read_when_its_connection_is_rejected_has_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limiter, "FIRST_MESSAGE_S", 3_600.0)

    async def main() -> None:
        loop_time = LoopTime()
        async with serving() as (receiver, port):
            late = await in_thread(partial(half_open, port, "127.0.0.2"))
            await until(lambda: len(receiver.server._connections) == 1)
            # In one turn of the loop it is read, and its deadline is due.
            late.sendall(masked_frame(encode(register())))
            await loop_time.forward(3_601)
            await until(lambda: len(receiver.server._connections) == 0)
            assert (receiver.messages, receiver.lost) == ([], [])
            late.close()

    run(main())


@pytest.mark.usefixtures("patient")
def test_who_has_proven_the_token_of_the_job_loses_its_place_to_no_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limiter, "BESIDE_NODES", 4)
    token = JobToken("t" * 16)

    async def main() -> None:
        async with serving(authenticator=Authenticator(token)) as (_, port):
            worker = Node(port)
            worker.client._access = Access(Caller(PrincipalKind.NODE, "worker_0", token))
            await worker.client.connect(WAIT_S)
            strangers = []
            for _ in range(20):
                strangers.append(await in_thread(partial(plain_socket, port)))
                strangers[-1].sendall(b"GET /challenge HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await in_thread(partial(strangers[-1].recv, 13)) == b"HTTP/1.1 200 "
            worker.client.send(register())
            await until(lambda: worker.messages, "admission")
            assert worker.lost == []
            await worker.client.close()
            for each in strangers:
                each.close()

    run(main())


@pytest.mark.usefixtures("patient")
def test_all_nodes_of_a_job_may_dial_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limiter, "BESIDE_NODES", 2)
    rules = Rules(worker_count=60)

    async def main() -> None:
        async with serving(rules) as (receiver, port):
            # All are accepted before the first one sends its request, and all have asked before the first one registers.
            dialled = [await in_thread(partial(plain_socket, port)) for _ in range(60)]
            for each in dialled:
                each.sendall(HANDSHAKE)
            for each in dialled:
                assert await in_thread(partial(each.recv, 13)) == b"HTTP/1.1 101 "
            for each in dialled:
                each.sendall(masked_frame(encode(register())))
            await until(lambda: len(receiver.messages) == 60)
            assert receiver.lost == []
            for each in dialled:
                each.close()

    run(main())
