"""What a peer may send between two messages: bounded in all its parts before its admission, large afterwards."""

from __future__ import annotations

import msgspec
import pytest

from recovery.transport.codec import encode
from tests.transport.test_wire_hostile import works
from tests.transport.wire import (
    HANDSHAKE,
    heartbeat,
    in_thread,
    masked_frame,
    plain_socket,
    register,
    run,
    serving,
    until,
)


def fragment(payload: bytes, *, opcode: int = 0) -> bytes:
    """A part of a message that is not its last one."""
    made = masked_frame(payload, opcode)
    return bytes([made[0] & 0x7F]) + made[1:]


def sent_until_closed(port: int, pieces: list[bytes]) -> int:
    """How many of the pieces the other side took before it closed."""
    with plain_socket(port) as peer:
        peer.sendall(HANDSHAKE)
        assert peer.recv(65_536).startswith(b"HTTP/1.1 101 ")
        for count, piece in enumerate(pieces):
            try:
                peer.sendall(piece)
                # What is not closed yet says nothing: an answer to a ping shows that the piece is read.
                peer.sendall(masked_frame(b"?", opcode=9))
                if not peer.recv(65_536):
                    return count
            except ConnectionError:
                return count
        return len(pieces)


def test_a_message_in_parts_before_the_admission_is_bounded_like_a_whole_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving() as (receiver, port):
            parts = [fragment(bytes(10_000), opcode=2)] + [fragment(bytes(10_000))] * 80
            assert await in_thread(lambda: sent_until_closed(port, parts)) == 8
            assert receiver.lost == []
            await works(receiver, port)

    run(main())
    assert "more than 81920 bytes without a whole message" in caplog.text
    assert caplog.text.count("\n") == 1


def test_what_is_bounded_before_the_admission_is_counted_from_message_to_message() -> None:
    padded = msgspec.msgpack.decode(encode(register())) | {"of_a_later_release": "x" * 40_000}
    message = masked_frame(msgspec.msgpack.encode(padded))

    async def main() -> None:
        async with serving() as (receiver, port):
            receiver.admits = False
            assert await in_thread(lambda: sent_until_closed(port, [message] * 5)) == 5
            assert [said for _, said, _ in receiver.messages] == [register()] * 5
            await until(lambda: receiver.lost)
            parts = [message, fragment(bytes(10_000), opcode=2)] + [fragment(bytes(10_000))] * 80
            assert await in_thread(lambda: sent_until_closed(port, parts)) == 9
            await until(lambda: len(receiver.lost) == 2)
            assert "more than 81920 bytes" in receiver.lost[1][1]

    run(main())


def test_a_node_that_is_admitted_may_send_its_larger_message_in_parts() -> None:
    beat = msgspec.msgpack.decode(encode(heartbeat())) | {"of_a_later_release": "x" * 900_000}
    frame = msgspec.msgpack.encode(beat)
    parts = [frame[start : start + 10_000] for start in range(0, len(frame), 10_000)]

    async def main() -> None:
        async with serving() as (receiver, port):
            pieces = [
                masked_frame(encode(register())),
                fragment(parts[0], opcode=2),
                *(fragment(part) for part in parts[1:-1]),
                masked_frame(parts[-1], opcode=0),
            ]
            assert await in_thread(lambda: sent_until_closed(port, pieces)) == len(pieces)
            await until(lambda: len(receiver.messages) == 2)
            assert [said for _, said, _ in receiver.messages] == [register(), heartbeat()]

    run(main())
