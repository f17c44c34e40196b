"""One POST of JSON to a server that is not ours, over HTTPS, past any proxy."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from recovery.core.converter import UNREADABLE

if TYPE_CHECKING:
    import ssl

_OK = range(200, 300)
_READ_BYTES = 4_096
_SHOWN = 200
"""Characters of what a server says."""
LATE = "no answer in time"


class NotPostedError(OSError):
    """It was not taken, for what this says to people."""


def post(url: str, body: Mapping[str, Any], *, token: str, tls: ssl.SSLContext, within_s: float) -> None:
    """Send it. Blocks.

    Args:
        url: an https:// URL.
        body: is sent as JSON.
        token: proves who sends it; never part of an error.
        tls: whom to trust.
        within_s: how long the server may be silent.

    Raises:
        NotPostedError: nobody answers there in time, or what is there refuses.
    """
    parts = urlsplit(url)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=within_s, context=tls)
    try:
        connection.request("POST", path, body=msgspec.json.encode(body), headers=headers)
        answer = connection.getresponse()
        status, said = answer.status, answer.read(_READ_BYTES)
    except TimeoutError as error:
        raise NotPostedError(LATE) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotPostedError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    if status not in _OK:
        text = f"it answers {status}{_reason_in(said)}"
        raise NotPostedError(text)


def _reason_in(answer: bytes) -> str:
    """The message of a Status of Kubernetes, else the answer's own text; behind the number."""
    try:
        found = msgspec.json.decode(answer)
        text = str(found["message"]) if isinstance(found, dict) and "message" in found else ""
    except UNREADABLE:
        text = answer.decode(errors="replace")
    text = " ".join(text.split())[:_SHOWN]
    return f": {text}" if text.isprintable() and text else ""
