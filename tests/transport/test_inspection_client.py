"""Asking a scheduler for a view: a large one comes whole, and an answer that is none is named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from recovery.transport import inspection_client
from recovery.transport.inspection_client import NoAnswerError, ask

Writer = asyncio.StreamWriter
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"


async def answered(speak: Callable[[Writer], Awaitable[None]]) -> Any:
    """What `ask` makes of a server that speaks so."""

    async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        # A client that has read enough closes the connection.
        with contextlib.suppress(ConnectionError):
            await speak(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await ask("127.0.0.1", server.sockets[0].getsockname()[1], "/status")


def in_pieces(content: bytes) -> Callable[[Writer], Awaitable[None]]:
    async def speak(writer: Writer) -> None:
        writer.write(HEAD)
        for begin in range(0, len(content), 100_000):
            writer.write(content[begin : begin + 100_000])
            await writer.drain()
            # The next piece comes in a segment of its own.
            await asyncio.sleep(0)

    return speak


def test_an_answer_that_comes_in_many_pieces_is_read_to_its_end() -> None:
    nodes = [{"node_id": f"worker_{number}", "reason": "x" * 200} for number in range(10_000)]

    assert asyncio.run(answered(in_pieces(msgspec.json.encode(nodes)))) == nodes


@pytest.mark.parametrize("content", [b"no json", b'{"half": ', b'"\xff"', b"[" * 100_000])
def test_an_answer_that_is_no_json_counts_as_none(content: bytes) -> None:
    with pytest.raises(NoAnswerError):
        asyncio.run(answered(in_pieces(content)))


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection_client, "_ANSWER_BYTES_MAX", 1_000_000)

    with pytest.raises(NoAnswerError, match="longer than 1000000 bytes"):
        asyncio.run(answered(in_pieces(b"[" + b"1," * 1_000_000)))
