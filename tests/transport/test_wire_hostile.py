from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import random

import pytest

from recovery.core.rules import Rules
from recovery.transport import connection_limiter, rejection_log
from recovery.transport.codec import encode
from recovery.transport.inspection_server import Inspection, json_route
from tests.transport.wire import (
    HANDSHAKE,
    HOST,
    WAIT_S,
    LoopTime,
    Node,
    Receiver,
    heartbeat,
    in_thread,
    masked_frame,
    plain_socket,
    register,
    run,
    serving,
    until,
)


def talk(port: int, *parts: bytes) -> bytes:
    """Send, then read until the other side closes."""
    with plain_socket(port) as peer:
        received = b""
        with contextlib.suppress(ConnectionError):
            for part in parts:
                peer.sendall(part)
            while piece := peer.recv(65_536):
                received += piece
        return received


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


async def works(receiver: Receiver, port: int) -> None:
    """A good worker is served."""
    node = Node(port)
    await node.join()
    node.client.send(heartbeat())
    await until(lambda: len(node.messages) == 2, "the answer to a heartbeat")
    await node.client.close()


GARBAGE = [
    # A TLS hello.
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
    b"\x00" * 5_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /cluster HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    HANDSHAKE + b"\xff" * 64,
    HANDSHAKE + masked_frame(b"{}", opcode=1),
    HANDSHAKE + masked_frame(b"\xc1"),
    HANDSHAKE + masked_frame(b""),
    # A client's frame without its mask.
    HANDSHAKE + b"\x82\x05hello",
    # 2^64 - 1 bytes are announced.
    HANDSHAKE + bytes([0x82, 0x80 | 127]) + b"\xff" * 8,
    HANDSHAKE.replace(b"GET /cluster", b"GET /status"),
    HANDSHAKE.replace(b"Version: 13", b"Version: 12"),
    HANDSHAKE.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"short"),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage[:20] + garbage[-8:]))
def test_garbage_is_turned_away_with_one_log_line_and_no_traceback(
    garbage: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            await in_thread(lambda: talk(port, garbage))
            await works(receiver, port)
            await until(lambda: len(receiver.server._connections) == 0)

            assert len(receiver.messages) == 2
            assert [reason for _, reason in receiver.lost] == ["connection closed"]

    run(main())
    assert len(caplog.records) == 1, caplog.text
    assert "no message of ours within" not in caplog.text, "it is not waited for"
    assert "event=peer_refused peer=127.0.0.1 count=1 reason=" in caplog.text
    assert caplog.text.count("\n") == 1
    assert "Traceback" not in capfd.readouterr().err


def test_an_unregistered_peer_may_not_send_as_much_as_a_node(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as (_, port):
            await in_thread(lambda: talk(port, HANDSHAKE + masked_frame(bytes(70_000))))

    run(main())
    assert "at most 65536 are allowed" in caplog.text


def test_random_bytes_in_any_number_disturb_nobody() -> None:
    async def main() -> None:
        chance = random.Random(20_261_120)
        async with serving() as (receiver, port):
            for number in range(100):
                noise = chance.randbytes(chance.randrange(1, 3_000))
                start = HANDSHAKE if number % 2 else b""

                def shout(parts: tuple[bytes, ...] = (start, noise)) -> None:
                    with contextlib.suppress(ConnectionError), plain_socket(port) as peer:
                        for part in parts:
                            peer.sendall(part)

                await in_thread(shout)
            await works(receiver, port)

            assert len(receiver.messages) == 2

    run(main())


def test_one_address_gets_one_line_a_minute_with_a_count(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejections = rejection_log.RejectionLog()
    for _ in range(1_000):
        rejections.note("10.0.0.1", "garbage")
    rejections.note("10.0.0.2", "garbage")
    assert [record.getMessage() for record in caplog.records] == [
        "event=peer_refused peer=10.0.0.1 count=1 reason='garbage'",
        "event=peer_refused peer=10.0.0.2 count=1 reason='garbage'",
    ]

    monkeypatch.setattr(rejection_log, "PERIOD_MS", 0)
    rejections.note("10.0.0.1", "garbage")
    assert caplog.records[-1].getMessage() == "event=peer_refused peer=10.0.0.1 count=1000 reason='garbage'"


def test_a_scan_from_many_addresses_fills_neither_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    rejections = rejection_log.RejectionLog()
    for number in range(rejection_log.ADDRESSES_MAX + 500):
        rejections.note(f"2001:db8::{number:x}", "garbage")

    assert len(rejections._logged_at_ms) == rejection_log.ADDRESSES_MAX + 1
    assert len(caplog.records) == rejection_log.ADDRESSES_MAX + 1
    assert "peer=other addresses" in caplog.records[-1].getMessage()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """A first message is waited for 0.2 s instead of 5."""
    monkeypatch.setattr(connection_limiter, "FIRST_MESSAGE_S", 0.2)
    return 0.2


@pytest.mark.parametrize(
    "start",
    [b"", b"GET /cluster HTTP/1.1\r\nHost", HANDSHAKE, HANDSHAKE + masked_frame(encode(register()))[:-1]],
    ids=["silent", "half a request", "no message", "half a message"],
)
def test_a_peer_without_a_first_message_is_closed(
    start: bytes, impatient: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            began = asyncio.get_running_loop().time()
            await in_thread(lambda: talk(port, start))

            assert impatient * 0.9 <= asyncio.get_running_loop().time() - began
            await until(lambda: len(receiver.server._connections) == 0)
            assert receiver.lost == []

    run(main())
    assert f"no message of ours within {impatient:g} s" in caplog.text


def test_a_peer_that_drips_its_bytes_is_closed_at_the_same_deadline(impatient: float) -> None:
    async def main() -> None:
        async with serving() as (_, port):
            with await in_thread(lambda: plain_socket(port)) as peer:
                peer.settimeout(0)
                dripped = 0
                with contextlib.suppress(ConnectionError):
                    for byte in HANDSHAKE * 100:
                        peer.send(bytes([byte]))
                        dripped += 1
                        await asyncio.sleep(0.01)

            assert dripped < 200

    run(main())


def test_a_message_in_single_bytes_is_read_whole() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            with await in_thread(lambda: plain_socket(port)) as peer:
                for byte in HANDSHAKE + masked_frame(encode(register())):
                    peer.send(bytes([byte]))
                    await asyncio.sleep(0)
                await until(lambda: receiver.messages)

                assert receiver.messages[0][1] == register()

    run(main())


def test_an_admitted_node_may_be_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop_time = LoopTime()
        async with serving() as (receiver, port):
            node = Node(port)
            await node.join()
            limiter = receiver.server._limiter
            assert limiter is not None
            with await in_thread(lambda: plain_socket(port)):
                await until(lambda: len(limiter._accepted) == 2, "one that never registers")
                await loop_time.forward(3_600)
                await until(lambda: len(limiter._accepted) == 1, "its end")
            node.client.send(heartbeat())
            await until(lambda: len(node.messages) == 2, "the answer to a heartbeat")
            assert receiver.lost == []
            await node.client.close()

    run(main())
    assert "no message of ours within 30 s" in caplog.text


def test_a_node_that_is_not_admitted_is_cut_off_after_lease_and_window() -> None:
    async def main() -> None:
        async with serving(Rules(worker_count=1, lease_ms=100, rejoin_window_ms=100)) as (receiver, port):
            receiver.admits = False
            node = Node(port)
            await node.client.connect(WAIT_S)
            node.client.send(register())
            await until(lambda: receiver.lost)

            assert [reason for _, reason in receiver.lost] == ["not admitted and silent for 0.2 s"]
            await until(lambda: node.lost)

    run(main())


@pytest.mark.usefixtures("patient", "many_descriptors")
def test_a_good_worker_is_served_at_its_first_dial_beside_500_silent_and_50_noisy_peers() -> None:
    async def main() -> None:
        chance = random.Random(7)
        async with serving() as (receiver, port):
            hanging = [await in_thread(lambda: plain_socket(port)) for _ in range(550)]
            for noisy in hanging[::11]:
                # Those that were silent longest are closed already.
                with contextlib.suppress(ConnectionError):
                    noisy.sendall(chance.randbytes(500))
            await works(receiver, port)
            limiter = receiver.server._limiter
            assert limiter is not None
            assert len(limiter._silent) >= connection_limiter.BESIDE_NODES // 2, "no deadline has made room"
            for each in hanging:
                each.close()

    run(main())


def test_inspection_answers_and_names_its_paths(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> tuple[bytes, str]:
        raise KeyError("a view with a bug")

    async def main() -> None:
        routes = (
            ("/status", json_route(lambda: {"workers": [1, 2], "state": "running"})),
            ("/broken", broken),
        )
        async with serving(inspection=Inspection(routes)) as (receiver, port):
            status, kind, body = await in_thread(lambda: ask(port, "/status"))
            assert (status, kind, json.loads(body)) == (
                200,
                "application/json",
                {"workers": [1, 2], "state": "running"},
            )
            assert await in_thread(lambda: ask(port, "/healthz")) == (200, "text/plain", "ok\n")
            assert (await in_thread(lambda: ask(port, "/nowhere")))[0::2] == (
                404,
                "no such path; there is /broken, /healthz, /status\n",
            )
            assert (await in_thread(lambda: ask(port, "/status", "POST")))[0] == 405
            assert (await in_thread(lambda: ask(port, "/cluster")))[0] == 426
            assert (await in_thread(lambda: ask(port, "/broken")))[0] == 500
            assert (await in_thread(lambda: ask(port, "/status", "HEAD")))[0::2] == (200, "")
            await works(receiver, port)

    run(main())
    (failed,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert failed.getMessage() == "event=inspection_failed path=/broken"


def test_a_web_page_cannot_open_a_workers_connection() -> None:
    async def main() -> None:
        async with serving() as (_, port):
            asked = HANDSHAKE.replace(b"Host: x\r\n", b"Host: x\r\nOrigin: http://evil.example\r\n")
            assert (await in_thread(lambda: talk(port, asked))).startswith(b"HTTP/1.1 403 ")

    run(main())


def test_compression_is_offered_to_nobody() -> None:
    """A few bytes would become as many as the sender likes."""

    async def main() -> None:
        async with serving() as (_, port):
            offers = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n"
            asked = HANDSHAKE.removesuffix(b"\r\n") + offers
            compressed = masked_frame(encode(register()))
            # The bit that says so: without an agreement the frame is none.
            compressed = bytes([compressed[0] | 0x40]) + compressed[1:]
            heard = await in_thread(lambda: talk(port, asked, compressed))
            assert heard.startswith(b"HTTP/1.1 101 ")
            assert b"deflate" not in heard.partition(b"\r\n\r\n")[0].lower()

    run(main())


def test_pings_and_fragments_of_a_node_are_understood() -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            frame = encode(register())
            first, rest = masked_frame(frame[:10]), masked_frame(frame[10:], opcode=0)
            with await in_thread(lambda: plain_socket(port)) as peer:
                peer.sendall(
                    HANDSHAKE + bytes([first[0] & 0x7F]) + first[1:] + masked_frame(b"?", opcode=9) + rest
                )
                await until(lambda: receiver.messages)

                assert receiver.messages[0][1] == register()

    run(main())
