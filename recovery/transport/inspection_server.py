"""HTTP inspection beside the worker connections, on the same port: `GET` of a path gives a view of the cluster.

A route is a plain function, called in the scheduler's loop for each request, so it must be quick and must not wait. So is an action,
which changes something: `POST` of its path, and only from a process of the scheduler's own host. Which peers may ask at all is settled
before (server.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from recovery.transport.rejection_log import RejectionLog

HEALTH_PATH = "/healthz"
METRICS_PATH = "/metrics"
ACTION_BYTES_MAX = 4_096
"""Longest body of a request that acts: it names something."""

_logger = logging.getLogger("recovery.transport")
_FAILED, _SEE_LOG = "event=inspection_failed path=%s", "this view failed, see the scheduler's log"
_FOR_ANOTHER = ("Origin", "Forwarded", "Via", "X-Forwarded-For")
"""Of what a browser or a proxy sends."""

Route = Callable[[], tuple[bytes, str]]
"""Gives body and content type."""

Page = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Takes the `Accept` header; gives body and content type. It may wait, for less than a connection may take to its answer."""

Action = Callable[[bytes], tuple[int, Any]]
"""Takes the body of a request; gives the HTTP status and a value that is answered as JSON."""


class Inspection(NamedTuple):
    """Everything that can be asked for over HTTP, by path."""

    routes: Sequence[tuple[str, Route]] = ()
    actions: Sequence[tuple[str, Action]] = ()
    """For processes of the scheduler's own host."""
    pages: Sequence[tuple[str, Page]] = ()
    """Those that may wait. Of METRICS_PATH: for a monitoring system, which neither registers nor answers a challenge."""


def healthz() -> tuple[bytes, str]:
    """Answer a liveness probe: a process that can answer has a loop that turns. Says nothing about the job."""
    return b"ok\n", "text/plain"


def json_route(view: Callable[[], Any]) -> Route:
    """Serve a view as indented JSON, built again for every request.

    Args:
        view: gives a Struct, dict or list; anything that msgspec can encode.
    """
    return lambda: json_body(view())


def json_body(value: Any) -> tuple[bytes, str]:
    """Turn a value into body and content type. Indented, because people read it with curl."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", "application/json"


class InspectionPages:
    """What a scheduler shows, and what it does when it is asked to."""

    def __init__(self, inspection: Inspection, rejections: RejectionLog) -> None:
        """Take the views and actions.

        Args:
            inspection: by path; `/healthz` is always there.
            rejections: logs peers that ask for what there is not, or may not be asked for from there.
        """
        self._routes: dict[str, Route] = {HEALTH_PATH: healthz, **dict(inspection.routes)}
        self._actions, self._pages = dict(inspection.actions), dict(inspection.pages)
        self._rejections = rejections

    def action_of(self, request: web.BaseRequest) -> Action | None:
        """What a request asks to do; None: it asks to see something."""
        return self._actions.get(request.path) if request.method == "POST" else None

    async def page(self, request: web.BaseRequest) -> web.Response | None:
        """A page that may wait; None: something else is asked for."""
        page = self._pages.get(request.path)
        if page is None:
            return None
        if request.method not in ("GET", "HEAD"):
            return text_of(405, "only GET")
        try:
            body, content_type = await page(request.headers.get("Accept", ""))
        except Exception:
            _logger.exception(_FAILED, request.path)
            return text_of(500, _SEE_LOG)
        # Not by name: its parameters say which format it is.
        return _closing(web.Response(body=body, headers={"Content-Type": content_type}))

    def answer(self, request: web.BaseRequest, action: Action | None, body: bytes) -> web.Response:
        """Do it, or show it."""
        return self._show(request) if action is None else self._act(request, action, body)

    def _show(self, request: web.BaseRequest) -> web.Response:
        route = self._routes.get(request.path)
        if route is None:
            there_is = f"no such path; there is {', '.join(sorted([*self._routes, *self._pages]))}"
            return refused(self._rejections, request, "asked for a path that does not exist", 404, there_is)
        if request.method not in ("GET", "HEAD"):
            return text_of(405, "only GET")
        try:
            body, content_type = route()
        except Exception:
            # A view that fails must not end what it views.
            _logger.exception(_FAILED, request.path)
            return text_of(500, _SEE_LOG)
        return _closing(web.Response(body=body, content_type=content_type))

    def _act(self, request: web.BaseRequest, action: Action, body: bytes) -> web.Response:
        """Change something for a caller that could as well send signals to the processes here: nobody else is known yet."""
        if not is_of_this_host(request):
            self._rejections.note(request.remote or "unknown", f"asked for {request.path} from elsewhere")
            return text_of(403, "only for processes of the scheduler's own host, and not for browsers")
        status, answer = action(body)
        content, content_type = json_body(answer)
        return _closing(web.Response(status=status, body=content, content_type=content_type))


def is_of_this_host(request: web.BaseRequest) -> bool:
    """Does a process of the scheduler's own host ask, and neither a browser nor a proxy for somebody else?"""
    own = request.transport.get_extra_info("sockname") if request.transport is not None else None
    is_own = own is not None and request.remote == own[0]
    return is_own and not any(header in request.headers for header in _FOR_ANOTHER)


async def body_of(request: web.BaseRequest) -> bytes | None:
    """Read the body of a request that acts; None: it is too long, or does not say how long it is."""
    length = request.content_length
    if length is None or length > ACTION_BYTES_MAX:
        return None
    # aiohttp gives an empty body as one that cannot be read.
    return await request.content.readexactly(length) if length else b""


def refused(
    rejections: RejectionLog, request: web.BaseRequest, noted: str, status: int, text: str
) -> web.Response:
    """Turn a peer away: `noted` is for the log, the rest for the peer."""
    rejections.note(request.remote or "unknown", noted)
    return text_of(status, text)


def text_of(status: int, text: str) -> web.Response:
    """Make an answer of one line, behind which the connection closes."""
    return _closing(web.Response(status=status, text=f"{text}\n"))


def _closing(response: web.Response) -> web.Response:
    response.force_close()
    return response
