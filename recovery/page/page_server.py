"""The live page for a browser on this host. Read only; nobody learns anything without the link's key, and nothing comes from elsewhere.

The key is in the part of the link that a browser sends to nobody (`#`); the page has it for its own requests. A cookie would go to every
other server on this address, since cookies know no port. A page of another site does not have it, may not read what it is answered, and
under a name of its own (DNS rebinding) it is turned away.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib.resources
from collections.abc import Callable
from typing import Any

from aiohttp import web

from recovery import clock
from recovery.page.feed import Feed, in_thread, read_json

HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")
"""That a browser may have for this host; `ssh -L` makes it another port."""
_ASSETS = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/timeline.js": ("timeline.js", "text/javascript"),
}
"""The same for every job: whoever asks has them."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_CLOSE_S = 1.0


class PageServer:
    """Of one `recovery open`."""

    def __init__(self, feed: Feed, plan: Callable[[], Any], key: str) -> None:
        """Prepare; `start` listens.

        Args:
            feed: what is streamed.
            plan: says what a restart would do, in sentences; called in a thread, one call at a time.
            key: whoever has it may look.
        """
        self._feed, self._plan, self._key = feed, plan, key
        self._planning: asyncio.Task[bytes] | None = None
        self._streams: set[asyncio.Task[Any]] = set()
        application = web.Application(middlewares=[self._let_in])
        application.router.add_get("/stream", self._stream)
        application.router.add_get("/plan", self._tell_plan)
        for path in _ASSETS:
            application.router.add_get(path, self._asset)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSE_S)

    async def start(self, port: int) -> int:
        """Listen on loopback; returns the port (0: any free one).

        Raises:
            OSError: somebody else listens there.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, port).start()
        self._feed.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """End the streams and close the port."""
        for stream in self._streams:
            stream.cancel()
        await self._feed.stop()
        await self._runner.cleanup()

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            name = request.url.host
        except ValueError:
            name = None
        if name not in _NAMES:
            return _said(421, "this page is known as 127.0.0.1 or localhost")
        given = request.query.get("key", "").encode(errors="replace")
        if request.path not in _ASSETS and not hmac.compare_digest(given, self._key.encode()):
            return _said(403, "open the link that `recovery open` prints")
        response: web.StreamResponse = await handler(request)
        return response

    async def _asset(self, request: web.Request) -> web.Response:
        name, content_type = _ASSETS[request.path]
        body = importlib.resources.files("recovery.page").joinpath("assets", name).read_bytes()
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), until one side goes."""
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None, "aiohttp handles a request in a task"
        self._streams.add(task)
        changes = self._feed.changes()
        try:
            await response.write(b"retry: 1000\n\n")
            async for reading in changes:
                if reading is None:
                    await response.write(b": nothing new\n\n")
                    continue
                # Not part of what is compared: it is new with each reading.
                when = f'"age_ms": {reading.age_ms}, "now_ms": {clock.wall_ms()}'
                data = f"event: {reading.topic}\ndata: {{{when}, ".encode() + b'"value": ' + reading.body
                await response.write(data + b"}\n\n")
        except (ConnectionError, asyncio.CancelledError):
            # The browser has gone, or this command ends.
            pass
        finally:
            await changes.aclose()
            self._streams.discard(task)
        return response

    async def _tell_plan(self, _: web.Request) -> web.Response:
        """It may read many files: who asks meanwhile has the same answer."""
        if self._planning is None or self._planning.done():
            self._planning = asyncio.create_task(in_thread("plan", lambda: read_json(self._plan)))
        body = await asyncio.shield(self._planning)
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)


def _said(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=_HEADERS)
