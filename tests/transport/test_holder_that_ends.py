"""A holder ends in the middle of a transfer: nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from tests.transport.test_file_transfer import DIGEST, HUGE, Held, client, holder, refusal
from tests.transport.wire import run


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
