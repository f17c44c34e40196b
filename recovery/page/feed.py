"""What the live page shows, read again and again while somebody looks at it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple, TypeVar

from recovery import clock
from recovery.errors import RecoveryError
from recovery.report.as_json import in_one_line
from recovery.scheduler import side_thread

_logger = logging.getLogger("recovery.page")
_Value = TypeVar("_Value")

SHARE = 10
"""A reading is done again behind so many times as long as it took: it has a tenth of one core at most, however long the event log is."""
_ALIVE_S = 10.0
"""Of a stream in which nothing is new: so often its reader learns that it is not broken."""


class Topic(NamedTuple):
    """A part of what is shown."""

    name: str
    """As the page calls it."""
    read: Callable[[], Any]
    """Gives a value that msgspec can encode. It may take long: it is called in a thread."""
    pause_s: float
    """Between two readings, at least."""


class Reading(NamedTuple):
    """What a topic was."""

    topic: str
    body: bytes
    """JSON, on one line."""
    age_ms: int
    """How long ago it was read."""


class Feed:
    """Reads all once at its start, and nothing more while nobody looks. All methods are called in one loop."""

    def __init__(self, *topics: Topic) -> None:
        """Nobody looks yet."""
        self._topics = topics
        self._newest: dict[str, bytes] = {}
        self._read_ms: dict[str, int] = {}
        """When each was read last."""
        self._changed = asyncio.Condition()
        self._looking = 0
        self._is_looked_at = asyncio.Event()
        self._readers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin, in the running loop."""
        self._readers = [asyncio.create_task(self._keep(topic)) for topic in self._topics]

    async def stop(self) -> None:
        """End the readings. A thread that reads goes on, and what it finds is dropped; no end of the process waits for it."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def changes(self) -> AsyncGenerator[Reading | None, None]:
        """Give each topic's newest value, and each that follows; None now and then where nothing is new."""
        told: dict[str, bytes] = {}
        self._looking += 1
        self._is_looked_at.set()
        try:
            while True:
                news = [one for one in self._newest.items() if told.get(one[0]) is not one[1]]
                told.update(news)
                for topic, body in news:
                    yield Reading(topic, body, clock.monotonic_ms() - self._read_ms[topic])
                if not news and not await self._wait():
                    yield None
        finally:
            self._looking -= 1
            if not self._looking:
                self._is_looked_at.clear()

    async def _wait(self) -> bool:
        """Wait for a change; False: none came for a while."""
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait(), _ALIVE_S)
            except asyncio.TimeoutError:
                return False
        return True

    async def _keep(self, topic: Topic) -> None:
        while True:
            begun_ms = clock.monotonic_ms()
            found = await in_thread(topic.name, lambda: read_json(topic.read))
            self._read_ms[topic.name] = begun_ms
            if found != self._newest.get(topic.name):
                async with self._changed:
                    self._newest[topic.name] = found
                    self._changed.notify_all()
            took_s = (clock.monotonic_ms() - begun_ms) / 1000
            await asyncio.sleep(max(topic.pause_s, SHARE * took_s))
            await self._is_looked_at.wait()


def read_json(read: Callable[[], Any]) -> bytes:
    """A value, or why there is none: files may be missing for the moment, a scheduler may be away, or speak another release's words."""
    try:
        return in_one_line(read())
    except (RecoveryError, OSError) as error:
        return in_one_line({"error": str(error)})
    except Exception as error:
        _logger.exception("event=page_not_read")
        return in_one_line({"error": f"{type(error).__name__}: {error}"})


async def in_thread(name: str, work: Callable[[], _Value]) -> _Value:
    """What it gives, in a thread that no end of this process waits for. It raises nothing."""
    ended: asyncio.Future[_Value] = asyncio.get_running_loop().create_future()

    def done(value: _Value) -> None:
        if not ended.done():
            ended.set_result(value)

    side_thread.start(name, work, done)
    return await ended
