"""Asking a running scheduler what it shows: the other end of inspection_server.py."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.core.converter import UNREADABLE
from recovery.transport.access import Access, shown, tls_failure
from recovery.transport.challenge import IMPOSTOR, NOT_LET_IN, REFUSALS

if TYPE_CHECKING:
    import aiohttp

_TIMEOUT_S = 3.0
_CONFLICT = 409
_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class NoAnswerError(OSError):
    """Nobody answers there, or no scheduler of ours. The caller shows something else then."""


async def ask(host: str, port: int, path: str, *, post: Any = None, access: Access | None = None) -> Any:
    """What a running scheduler answers to `GET` of a path, decoded from JSON.

    Args:
        host: address or name of the scheduler; IPv6 without brackets.
        port: its port.
        path: `/status`, `/generations`, `/checkpoints`, `/events`, `/history`, `/lost` or `/drain`.
        post: what to ask for by `POST`, as JSON; None: `GET`.
        access: how the connection is secured; None: in no way.

    Raises:
        NoAnswerError: no scheduler answers there.
    """
    import aiohttp  # noqa: PLC0415 - as in client.py

    access = access if access is not None else Access()
    await access.reload()
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    base, method, tls = access.base(host, port), "GET" if post is None else "POST", access.tls(host)
    data = b"" if post is None else json.dumps(post).encode()
    try:
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            answer = await access.answer(session, host, port, method, path, data)
            headers = answer.headers if answer is not None else {}
            async with session.request(
                method, f"{base}{path}", data=data or None, headers=headers, allow_redirects=False, **tls
            ) as response:
                if response.status in NOT_LET_IN:
                    await access.not_let_in()
                if response.status in REFUSALS:
                    raise NoAnswerError(REFUSALS[response.status])
                # What an action refuses has its reason in the body.
                if response.status != _CONFLICT:
                    response.raise_for_status()
                if answer is not None and not answer.holds(response.headers):
                    raise NoAnswerError(IMPOSTOR)
                return msgspec.json.decode(await _body_of(response))
    except (OSError, asyncio.TimeoutError, aiohttp.ClientError, *UNREADABLE) as error:
        raise NoAnswerError(tls_failure(error, access.channel) or shown(error)) from error


async def _body_of(response: aiohttp.ClientResponse) -> bytearray:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _ANSWER_BYTES_MAX:
            message = f"its answer is longer than {_ANSWER_BYTES_MAX} bytes"
            raise NoAnswerError(message)
    return body
