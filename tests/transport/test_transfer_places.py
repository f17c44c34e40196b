"""How many take files of one holder at a time, and who loses its place."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web

from recovery.transport import file_server, inspection_server
from recovery.transport.access import Access
from tests.transport.test_file_transfer import DIGEST, LARGE, SMALL, Held, Taken, client, held, holder
from tests.transport.wire import HOST, in_thread, run, until

__all__ = ["held"]


def test_who_comes_while_all_places_are_taken_waits(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_server, "TRANSFERS_MAX", 1)
    refused: list[int] = []
    text_of = inspection_server.text_of

    def noted(status: int, text: str) -> web.Response:
        refused.append(status)
        return text_of(status, text)

    monkeypatch.setattr(file_server, "text_of", noted)

    async def main() -> None:
        first, second = Taken(), Taken()
        may_go_on = asyncio.Event()

        async def slowly(piece: bytes) -> None:
            await first(piece)
            await may_go_on.wait()

        async with holder(held) as port, client(port) as one, client(port) as other:
            # Larger than what the sockets between the two hold.
            held.files[1].write_bytes(LARGE * 8)
            taking = asyncio.ensure_future(one.file(DIGEST, 1, len(LARGE) * 8, slowly))
            await until(lambda: first.content, "the first piece")
            waiting = asyncio.ensure_future(other.file(DIGEST, 0, len(SMALL), second))
            await until(lambda: file_server.BUSY in refused, "the answer that it serves another")
            assert not waiting.done()
            assert not second.content
            may_go_on.set()
            await asyncio.gather(taking, waiting)
        assert first.content == LARGE * 8
        assert second.content == SMALL

    run(main())


def test_a_reader_that_takes_nothing_loses_its_place(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_server, "TRANSFERS_MAX", 1)
    monkeypatch.setattr(file_server, "READER_STALL_S", 1)
    held.files[1].write_bytes(LARGE * 8)

    async def main() -> None:
        async with holder(held, None) as port:
            peer = await in_thread(lambda: stalled(port))
            taken = Taken()
            async with client(port, Access()) as asking:
                await asking.file(DIGEST, 0, len(SMALL), taken)
            peer.close()
        assert taken.content == SMALL

    run(main())


def stalled(port: int) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.connect((HOST, port))
    peer.sendall(f"GET /checkpoints/{DIGEST}/files/1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert peer.recv(8) == b"HTTP/1.1"
    return peer
