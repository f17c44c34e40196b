"""Asking a running scheduler what it shows: the other end of inspection.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from recovery.transport.client import tls_failure, tls_of

if TYPE_CHECKING:
    from recovery.tls.channel import Channel

_TIMEOUT_S = 3.0
_CONFLICT = 409
_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class NoAnswerError(OSError):
    """Nobody answers there, or no scheduler of ours. The caller shows something else then."""


async def ask(host: str, port: int, path: str, *, post: Any = None, channel: Channel | None = None) -> Any:
    """What a running scheduler answers to `GET` of a path, decoded from JSON.

    Args:
        host: address or name of the scheduler; IPv6 without brackets.
        port: its port.
        path: `/status`, `/generations`, `/checkpoints`, `/events`, `/lost` or `/drain`.
        post: what to ask for by `POST`, as JSON; None: `GET`.
        channel: the secure channel's dialling side; None: plain text.

    Raises:
        NoAnswerError: no scheduler answers there.
    """
    import aiohttp  # noqa: PLC0415 - as in client.py

    address = f"[{host}]" if ":" in host else host
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                "GET" if post is None else "POST",
                f"{'https' if channel else 'http'}://{address}:{port}{path}",
                json=post,
                **tls_of(channel, host),
            ) as response,
        ):
            # What an action refuses has its reason in the body.
            if response.status != _CONFLICT:
                response.raise_for_status()
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _ANSWER_BYTES_MAX:
                    message = f"its answer is longer than {_ANSWER_BYTES_MAX} bytes"
                    raise NoAnswerError(message)
        return msgspec.json.decode(body)
    except (OSError, asyncio.TimeoutError, aiohttp.ClientError, msgspec.MsgspecError) as error:
        raise NoAnswerError(tls_failure(error, channel) or str(error) or type(error).__name__) from error
