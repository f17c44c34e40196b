"""Messages that wait for one peer: putting never blocks, one task carries them out in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

MESSAGES_MAX = 256
"""Waiting for one peer. A living one takes them in milliseconds and gets a handful a second, so this is a minute of not reading.
At half of it a burst (a rollback plan to a paused worker, answers to its repeats) still fits; at twice it only costs memory."""
BYTES_MAX = 4_194_304
"""Waiting for one peer: four of the largest messages. 1,000 peers that stop reading at once cost 4 GiB at the very most."""


class Outbox:
    """Bounded queue of frames of one connection, used in its loop only."""

    def __init__(self) -> None:
        """Begin empty."""
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._finished = False
        self._more = asyncio.Event()

    def put(self, frame: bytes) -> bool:
        """Queue a frame. False: the bound is reached, the peer does not read. After `finish` frames are dropped."""
        if self._finished:
            return True
        if len(self._frames) >= MESSAGES_MAX or self._bytes + len(frame) > BYTES_MAX:
            return False
        self._frames.append(frame)
        self._bytes += len(frame)
        self._more.set()
        return True

    def finish(self) -> None:
        """Take nothing more; `run` returns once what is queued has been handed to the socket."""
        self._finished = True
        self._more.set()

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write frames until `finish`. An error of `write` ends it: the connection is gone."""
        while True:
            while self._frames:
                frame = self._frames.popleft()
                self._bytes -= len(frame)
                await write(frame)
            if self._finished:
                return
            self._more.clear()
            await self._more.wait()
