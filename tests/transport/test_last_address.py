"""A name server that is slow, or away, holds up the first dial only."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from recovery.transport.client import Client, ConnectError
from tests.transport.wire import RULES, WAIT_S, run, serving, until

DIAL_S = 5.0


class NameServer:
    """In the place of the system's: it answers at once, or when it is let."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.is_away = False
        self.asked = 0
        self._ask = socket.getaddrinfo

    def __call__(self, host: Any, *arguments: Any, **named: Any) -> Any:
        if host != "localhost":
            return self._ask(host, *arguments, **named)
        self.asked += 1
        assert self.answers.wait(WAIT_S)
        if self.is_away:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._ask("127.0.0.1", *arguments, **named)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    yield server
    server.answers.set()


def client(port: int) -> Client:
    return Client(host="localhost", port=port, rules=RULES, on_message=lambda _: None, on_lost=lambda _: None)


async def _settle() -> None:
    await until(lambda: len(asyncio.all_tasks()) == 1, "the end of a look-up")


def test_who_dials_again_does_not_wait_for_a_name_server_that_hangs(names: NameServer) -> None:
    async def main() -> None:
        async with serving() as (_, port):
            one = client(port)
            await one.connect(DIAL_S)
            names.answers.clear()
            for _ in range(2):
                await one.close()
                await one.connect(DIAL_S)
            asked = names.asked
            names.answers.set()
            await one.close()
            assert asked == 2, "it is asked again, by one thread"
        await _settle()

    run(main())


def test_a_name_server_that_is_away_is_none_of_a_known_scheduler_s(names: NameServer) -> None:
    async def main() -> None:
        async with serving() as (_, port):
            one = client(port)
            await one.connect(DIAL_S)
            names.is_away = True
            await one.connect(DIAL_S)
            await one.close()
        await _settle()

    run(main())


def test_a_name_that_was_never_known_is_said_to_be_that(names: NameServer) -> None:
    async def main() -> None:
        names.is_away = True
        async with serving() as (_, port):
            one = client(port)
            with pytest.raises(ConnectError, match="Temporary failure in name resolution"):
                await one.connect(DIAL_S)
            names.is_away = False
            await one.connect(DIAL_S)
            await one.close()
        await _settle()

    run(main())
