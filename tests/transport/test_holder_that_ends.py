"""A holder ends in the middle of a transfer: nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from recovery.transport import file_server
from recovery.transport.file_server import FileServer
from recovery.transport.job_token import Authenticator
from tests.transport.test_file_transfer import DIGEST, HUGE, Held, client, holder, refusal
from tests.transport.wire import HOST, run


def test_a_transfer_is_cut_without_a_word_when_the_holder_ends(tmp_path: Path) -> None:
    held = Held(tmp_path)
    held.files[1].write_bytes(HUGE)

    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def slow(_: bytes) -> None:
            begun.set()
            await ended.wait()

        async with contextlib.AsyncExitStack() as stack:
            async with holder(held) as port:
                asking = await stack.enter_async_context(client(port))
                transfer = asyncio.create_task(refusal(asking.file(DIGEST, 1, len(HUGE), slow)))
                await begun.wait()
            ended.set()
            await transfer

    run(main())


def test_a_transfer_that_does_not_end_is_cut_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may hold it."""
    monkeypatch.setattr(file_server, "_STOP_S", 0.01)

    async def main() -> bytes:
        server = FileServer(Held(tmp_path).find, authenticator=Authenticator(None))
        port = await server.start(HOST)
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(f"GET /checkpoints/{DIGEST}/manifest HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await server._slots.acquire()
        await server.stop()
        left = await reader.read()
        writer.close()
        return left

    assert run(main()).startswith(b"{")
