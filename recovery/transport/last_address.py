"""Where a name leads to: a dial waits for the name server once. Later ones go to what it said last, while it is asked again.

Who dials again has half a second, and a name server that is slow or away takes seconds.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

_PATIENCE_S = 0.1
"""How long a name that is known is waited for: a name server nearby answers within milliseconds, and the host may have moved."""


class LastAddress:
    """A resolver for aiohttp, of one client."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._known: list[Any] = []
        self._asked: asyncio.Task[list[Any]] | None = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[Any]:
        """Give the addresses of a name, as aiohttp takes them.

        Raises:
            OSError: nothing was ever known of it, and nothing is.
        """
        if self._asked is None:
            self._asked = asyncio.ensure_future(_look_up(host, port, family))
            self._asked.add_done_callback(self._on_answer)
        asked = self._asked
        if not self._known:
            return await asyncio.shield(asked)
        await asyncio.wait((asked,), timeout=_PATIENCE_S)
        return self._known

    async def close(self) -> None:
        """What is asked stays: the answer is for the next dial."""

    def _on_answer(self, asked: asyncio.Task[list[Any]]) -> None:
        self._asked = None
        if not asked.cancelled() and asked.exception() is None:
            self._known = asked.result()


async def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[Any]:
    import aiohttp  # noqa: PLC0415 - as in client.py

    return await aiohttp.ThreadedResolver().resolve(host, port, family)
