"""Why a scheduler does not take a dial, to a process that knows the job's token: its first question is for a challenge already."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from recovery.transport import inspection_client
from recovery.transport.access import Access
from recovery.transport.challenge import IMPOSTOR
from recovery.transport.client import ConnectError
from recovery.transport.inspection_client import NoAnswerError
from tests.transport.test_job_token import VIEWER, WORKER, client
from tests.transport.wire import HOST, WAIT_S, run

OTHER_NAME = "not known by that host name"
ANSWERS = [
    (421, True, OTHER_NAME),
    (401, True, "asks for the job's token"),
    (403, True, "does not let this process in"),
    (503, False, "too many connections that have not registered"),
    (404, False, IMPOSTOR),
    (307, False, IMPOSTOR),
]


@contextlib.asynccontextmanager
async def _answering(status: int) -> AsyncIterator[int]:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(reply, HOST, 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(("status", "not_let_in", "reason"), ANSWERS)
def test_a_process_with_a_token_learns_why_its_dial_is_refused(
    status: int, not_let_in: bool, reason: str
) -> None:
    async def main() -> None:
        async with _answering(status) as port:
            with pytest.raises(ConnectError) as caught:
                await client(port, WORKER).connect(WAIT_S)
            assert reason in caught.value.reason
            assert caught.value.not_let_in is not_let_in

    run(main())


@pytest.mark.parametrize(("status", "reason"), [(status, reason) for status, _, reason in ANSWERS])
def test_a_command_with_a_token_learns_why_it_is_refused(status: int, reason: str) -> None:
    async def main() -> None:
        async with _answering(status) as port:
            with pytest.raises(NoAnswerError) as caught:
                await inspection_client.ask(HOST, port, "/status", access=Access(VIEWER))
            assert reason in str(caught.value)

    run(main())
