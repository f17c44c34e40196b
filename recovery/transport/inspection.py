"""HTTP inspection beside the worker connections, on the same port: `GET` of a path gives a view of the cluster.

A route is a plain function, called in the scheduler's loop for each request, so it must be quick and must not wait. So is an action,
which changes something: `POST` of its path, and only from a process of the scheduler's own host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

Route = Callable[[], tuple[bytes, str]]
"""Gives body and content type."""

Action = Callable[[bytes], tuple[int, Any]]
"""Takes the body of a request; gives the HTTP status and a value that is answered as JSON."""


class Inspection(NamedTuple):
    """Everything that can be asked for over HTTP, by path."""

    routes: Sequence[tuple[str, Route]] = ()
    actions: Sequence[tuple[str, Action]] = ()
    """For processes of the scheduler's own host."""


ACTION_BYTES_MAX = 4_096
"""Longest body of a request that acts: it names something."""


def json_route(view: Callable[[], Any]) -> Route:
    """Serve a view as indented JSON, built again for every request.

    Args:
        view: gives a Struct, dict or list; anything that msgspec can encode.
    """
    return lambda: json_body(view())


def json_body(value: Any) -> tuple[bytes, str]:
    """Turn a value into body and content type. Indented, because people read it with curl."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", "application/json"


def healthz() -> tuple[bytes, str]:
    """Answer a liveness probe: a process that can answer has a loop that turns. Says nothing about the job."""
    return b"ok\n", "text/plain"
