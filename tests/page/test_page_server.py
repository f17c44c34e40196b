"""The server of `recovery open`, asked by a client that is no browser: who gets in, what is streamed, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import ANY

import aiohttp
import msgspec
import pytest

from recovery.errors import RecoveryPathError
from recovery.page.feed import Feed, Reading, Topic
from recovery.page.page_server import HOST, PageServer

KEY = "the-key"
WAIT_S = 60.0
GONE = RecoveryPathError(path="/gone", reason="is not there", next_step="Name another one.")


def nothing() -> dict[str, Any]:
    return {}


@contextlib.asynccontextmanager
async def served(
    *topics: Topic, plan: Callable[[], Any] = list
) -> AsyncIterator[tuple[aiohttp.ClientSession, str, PageServer]]:
    """A page that is served, a client, and its address."""
    server = PageServer(Feed(*topics), plan, KEY)
    port = await server.start(0)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session:
            yield session, f"http://{HOST}:{port}", server
    finally:
        await server.stop()


async def status_of(session: aiohttp.ClientSession, address: str, path: str = "/", **headers: str) -> int:
    async with session.get(f"{address}{path}", headers=headers) as answer:
        return answer.status


async def events(session: aiohttp.ClientSession, address: str) -> AsyncIterator[tuple[str, Any]]:
    """What is streamed: the names of events, and their values."""
    async with session.get(f"{address}/stream?key={KEY}") as answer:
        assert answer.content_type == "text/event-stream"
        name = ""
        async for line in answer.content:
            said, _, value = line.decode().rstrip("\n").partition(": ")
            name = value if said == "event" else name
            if said == "data":
                told = msgspec.json.decode(value)
                assert told["age_ms"] >= 0
                assert told["now_ms"] > 0
                yield name, told["value"]


@pytest.mark.parametrize("path", ["/stream", "/plan"])
@pytest.mark.parametrize("key", ["", "?key=", "?key=another", f"?key={KEY}x", "?key=%ff%fe"])
def test_nobody_learns_anything_without_the_key(path: str, key: str) -> None:
    async def main() -> None:
        async with served() as (session, address, _):
            assert await status_of(session, address, path + key) == 403
            # As a cookie it would go to every server on this address.
            assert await status_of(session, address, path + key, Cookie=f"key={KEY}") == 403
            assert await status_of(session, address, f"/plan?key={KEY}") == 200

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/timeline.js"])
def test_what_is_the_same_for_every_job_comes_from_here_alone(path: str) -> None:
    async def main() -> None:
        async with served() as (session, address, _), session.get(f"{address}{path}") as answer:
            assert answer.status == 200
            assert "Set-Cookie" not in answer.headers
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            text = await answer.text()
        assert not re.search(r"(src|href|from|import|url)[ =(\"']+(https?:)?//", text)
        assert KEY not in text

    asyncio.run(main())


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:80", "169.254.1.1", "127.0.0.1:x", "127.0.0.1@evil", ""]
)
def test_a_page_of_another_name_is_turned_away(name: str) -> None:
    """DNS rebinding: that name leads a browser here, and its page may read what it is answered."""

    async def main() -> None:
        async with served() as (session, address, _):
            for path in ("/", f"/plan?key={KEY}"):
                assert await status_of(session, address, path, Host=name) == 421
            assert await status_of(session, address, f"/plan?key={KEY}", Host="localhost:9999") == 200

    asyncio.run(main())


def test_only_get_is_answered() -> None:
    async def main() -> None:
        async with served() as (session, address, _):
            for path in ("/", f"/stream?key={KEY}", f"/plan?key={KEY}"):
                async with session.post(f"{address}{path}") as answer:
                    assert answer.status == 405
            assert await status_of(session, address, f"/status?key={KEY}") == 404
            assert await status_of(session, address, f"/assets/../page_server.py?key={KEY}") == 404

    asyncio.run(main())


def test_what_is_new_is_streamed_and_what_is_not_is_not() -> None:
    numbers = itertools.count()

    async def main() -> None:
        topics = Topic("now", lambda: {"step": next(numbers) // 3}, 0.01), Topic("history", nothing, 0.01)
        async with served(*topics) as (session, address, _):
            seen: list[tuple[str, Any]] = []
            async for one in events(session, address):
                seen.append(one)
                if len(seen) == 5:
                    break
        assert ("history", {}) in seen
        steps = [value["step"] for name, value in seen if name == "now"]
        assert steps == sorted(set(steps))
        assert len(steps) == 4

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GONE, str(GONE)),
        (OSError("the disk"), "the disk"),
        (msgspec.ValidationError("an event of tomorrow"), "ValidationError: an event of tomorrow"),
        (KeyError("trains"), "KeyError: 'trains'"),
    ],
)
def test_a_job_that_cannot_be_read_for_a_while_is_told_and_read_again(error: Exception, said: str) -> None:
    errors = iter([error])

    def read() -> dict[str, int]:
        for once in errors:
            raise once
        return {"step": 7}

    async def main() -> list[dict[str, Any]]:
        async with served(Topic("now", read, 0.01)) as (session, address, _):
            seen: list[dict[str, Any]] = []
            async for _, value in events(session, address):
                seen.append(value)
                if "step" in value:
                    break
        return seen

    assert [one for one in asyncio.run(main()) if one != {"error": said}] == [{"step": 7}]


def test_a_path_that_is_no_text_is_shown_all_the_same() -> None:
    async def main() -> Any:
        topic = Topic("now", lambda: {"path": "/tmp/j\udcff", "reason": "a\nb\u2028c"}, 0.01)
        async with served(topic) as (session, address, _):
            return await anext(events(session, address))

    assert asyncio.run(main()) == ("now", {"path": "/tmp/j?", "reason": "a\nb\u2028c"})


def test_nothing_is_read_again_while_nobody_looks() -> None:
    reads: list[int] = []

    async def main() -> None:
        read_once, read_twice = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> dict[str, int]:
            reads.append(len(reads))
            loop.call_soon_threadsafe((read_twice if len(reads) > 1 else read_once).set)
            return {"reads": len(reads)}

        feed = Feed(Topic("now", read, 0.0))
        feed.start()
        # The first reading is there before anybody looks.
        await asyncio.wait_for(read_once.wait(), WAIT_S)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert reads == [0]
        changes = feed.changes()
        assert await anext(changes) == Reading("now", b'{"reads":1}', ANY)
        await asyncio.wait_for(read_twice.wait(), WAIT_S)
        await changes.aclose()
        await feed.stop()

    asyncio.run(main())


def test_it_ends_beside_a_browser_that_looks() -> None:
    async def main() -> None:
        async with served(Topic("now", nothing, 0.01)) as (session, address, server):
            looking = events(session, address)
            assert await anext(looking) == ("now", {})
            await asyncio.wait_for(server.stop(), WAIT_S)
            with contextlib.suppress(StopAsyncIteration, aiohttp.ClientError):
                while True:
                    await anext(looking)

    asyncio.run(main())


@pytest.mark.parametrize("lines", [["a restart now would go on at step 7"], GONE])
def test_the_plan_is_made_when_it_is_asked_for(lines: Any) -> None:
    def plan() -> list[str]:
        if isinstance(lines, Exception):
            raise lines
        found: list[str] = lines
        return found

    async def main() -> None:
        async with (
            served(plan=plan) as (session, address, _),
            session.get(f"{address}/plan?key={KEY}") as answer,
        ):
            assert await answer.json() == ({"error": str(lines)} if isinstance(lines, Exception) else lines)

    asyncio.run(main())


def test_who_asks_for_a_plan_under_way_waits_for_the_same_one() -> None:
    goes_on, plans = threading.Event(), list[int]()

    def plan() -> list[str]:
        plans.append(len(plans))
        goes_on.wait(WAIT_S)
        return ["done"]

    async def main() -> None:
        async with served(plan=plan) as (session, address, _):
            asking = [asyncio.create_task(status_of(session, address, f"/plan?key={KEY}")) for _ in range(3)]
            # All have asked when a further request, behind them, was answered.
            while not plans:
                await status_of(session, address)
            for _ in range(3):
                await status_of(session, address)
            goes_on.set()
            assert await asyncio.gather(*asking) == [200, 200, 200]
        assert len(plans) <= 2

    asyncio.run(main())


def test_no_end_waits_for_a_reading() -> None:
    never = threading.Event()

    async def main() -> None:
        async with served(Topic("now", lambda: never.wait(WAIT_S), 0.01)) as (_, _, server):
            await asyncio.wait_for(server.stop(), WAIT_S / 2)

    asyncio.run(main())
    never.set()


def test_a_port_that_is_taken_is_an_error() -> None:
    async def main() -> None:
        async with served() as (_, address, _):
            other = PageServer(Feed(), list, KEY)
            with pytest.raises(OSError, match="address already in use"):
                await other.start(int(address.rpartition(":")[2]))
            await other.stop()

    asyncio.run(main())
