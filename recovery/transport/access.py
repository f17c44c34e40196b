"""How a process that dials is secured: what it proves of itself, and the channel on which it does."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from recovery import clock
from recovery.tls.handshakes import why
from recovery.tls.side import Side
from recovery.transport.challenge import challenge_of

if TYPE_CHECKING:
    import aiohttp

    from recovery.tls.channel import Channel
    from recovery.transport.job_token import Answer, Caller

_logger = logging.getLogger("recovery.transport")
_OF_AIOHTTP = re.compile(r" ssl:(\w+|<[^>]*>)(?= \[)")
"""How aiohttp names the context of a dial that found nobody."""
_IF_TLS = "; if it uses TLS, this process must too"


class Access(NamedTuple):
    """How a connection to the scheduler is secured."""

    caller: Caller | None = None
    """The process that dials, with the job's token; None, or without a token: nothing is proven."""
    channel: Channel | None = None
    """The secure channel's dialling side; None: plain text."""

    async def reload(self) -> None:
        """Before a dial: take new files of the channel where they have changed, and log what expires."""
        if self.channel is not None:
            for note in await asyncio.to_thread(self.channel.reload, clock.utc_now()):
                _logger.log(note.level, "event=%s %s", note.event, note.text)

    async def not_let_in(self) -> None:
        """After a dial that was refused for the token: the next one is with what is stored then."""
        if self.caller is not None:
            await asyncio.to_thread(self.caller.renew)

    async def answer(
        self, session: aiohttp.ClientSession, host: str, port: int, method: str, path: str, body: bytes = b""
    ) -> Answer | None:
        """Fetch a challenge and answer it, for one request; None: this process proves nothing. Raises as `challenge_of`."""
        if self.caller is None or self.caller.token is None:
            return None
        challenge = await challenge_of(session, self.base(host, port), self.tls(host))
        return self.caller.answer(challenge, method, path, body)

    def base(self, host: str, port: int) -> str:
        """Scheme, host and port of an address; IPv6 without brackets."""
        address = f"[{host}]" if ":" in host else host
        return f"{'https' if self.channel else 'http'}://{address}:{port}"

    def tls(self, host: str) -> dict[str, Any]:
        """What aiohttp is given for a request to `host`: the context of the moment, and the name to check."""
        if self.channel is None:
            return {}
        return {
            "ssl": self.channel.context,
            "server_hostname": self.channel.material.files.name_to_check(host),
        }


def tls_failure(error: BaseException, channel: Channel | None) -> str:
    """Why TLS is what failed; empty: it is not."""
    if channel is not None:
        return why(error, Side.CLIENT)
    # OpenSSL closes a connection that begins with HTTP, without an answer.
    if type(error).__name__ == "ServerDisconnectedError":
        return f"Server disconnected{_IF_TLS}"
    return f"Connection reset by peer{_IF_TLS}" if getattr(error, "errno", None) == errno.ECONNRESET else ""


def shown(error: BaseException) -> str:
    """A failed dial, for people."""
    return _OF_AIOHTTP.sub("", str(error)) or type(error).__name__
