"""Asks another node for files of a checkpoint: the other end of file_server.py. aiohttp is imported late, as in client.py.

A connection that breaks is made again and the file goes on where it stopped, as long as each attempt brings something. Nothing that
comes is believed: the caller that takes the bytes compares them with the digest that the scheduler has named.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from recovery.transport.access import Access, shown, tls_failure
from recovery.transport.challenge import ChallengeRefusedError

if TYPE_CHECKING:
    import aiohttp

PIECE_BYTES = 1 << 20
"""Handed on at once: large enough that hashing and writing it are nearly all of the time."""
_CONNECT_S = 5.0
_BUSY_WAIT_S = 0.5
_AGAIN_S = 0.2
_OK, _PARTIAL = 200, 206
_NOT_PROVEN, _ABSENT, _BUSY = 401, 404, 503
_REASONS = {
    401: "it asks for the job's token, and this process has none or proved it too late",
    403: "it does not take this process for a node of its job",
    404: "it does not hold it",
}
_IMPOSTOR = "what answers there does not prove that it knows the job's token"


class SourceError(Exception):
    """A holder does not give what was asked for."""

    def __init__(self, reason: str, *, damaged: bool = False) -> None:
        """Keep the reason.

        Args:
            reason: for people.
            damaged: what the holder has is not what is asked for, or it has nothing like it. False: it was not reached, or is too slow.
        """
        self.reason, self.damaged = reason, damaged
        super().__init__(reason)


class _BrokenOffError(SourceError):
    """The connection ended: another one may bring the rest."""


class Patience(NamedTuple):
    """How long a holder is waited for."""

    window_s: float = 20.0
    """In each of these windows something must come: `window_bytes`, or the rest."""
    window_bytes: int = 4 << 20
    """Slower than 0.2 MB/s is no network that a checkpoint can be copied over."""
    busy_s: float = 600.0
    """In all for a holder that serves others first; each of these is bounded by a window of its own."""
    broken_max: int = 3
    """Connections in a row that end before they have brought `window_bytes`."""


PATIENCE = Patience()


class FileClient:
    """One holder, asked one thing at a time. Use as a context."""

    def __init__(self, address: str, access: Access, patience: Patience = PATIENCE) -> None:
        """Prepare; nothing is dialled.

        Args:
            address: host:port, IPv6 in brackets.
            access: how connections are secured.
            patience: how long it is waited for.
        """
        self._host, _, port = address.rpartition(":")
        self._host = self._host.strip("[]")
        self._port = int(port) if port.isascii() and port.isdigit() else 0
        self._access, self._patience = access, patience
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> FileClient:
        """Make the session of all requests."""
        import aiohttp  # noqa: PLC0415 - see the head of this file

        await self._access.reload()
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_S, sock_read=self._patience.window_s
        )
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close its connections."""
        await self._session.close()

    async def manifest(self, digest: str, bytes_max: int) -> bytes:
        """Fetch the manifest of a contribution.

        Raises:
            SourceError: the holder does not give it, or it is longer than `bytes_max`.
        """
        async with self._explained(), self._asked(f"/checkpoints/{digest}/manifest", {}) as response:
            found = b""
            while len(found) <= bytes_max and (piece := await response.content.read(PIECE_BYTES)):
                found += piece
        if len(found) > bytes_max:
            reason = f"its manifest is longer than {bytes_max} bytes"
            raise SourceError(reason, damaged=True)
        return found

    async def file(
        self, digest: str, number: int, file_bytes: int, take: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Fetch one file whole, going on where a broken connection has stopped.

        Args:
            digest: of the contribution.
            number: of the file in its manifest, from 0.
            file_bytes: what the manifest says of its size; not one byte more is taken.
            take: called with each piece, in order. What it raises passes through.

        Raises:
            SourceError: the holder does not give it, gives another size, or gives it too slowly.
        """
        path, received, broken = f"/checkpoints/{digest}/files/{number}", 0, 0
        while received < file_bytes:
            before = received
            try:
                async with self._explained(), self._asked(path, _range(received)) as response:
                    _check_answer(response, received, file_bytes)
                    async for piece in self._pieces(response, file_bytes - received):
                        received += len(piece)
                        await take(piece)
            except _BrokenOffError:
                broken = 0 if received - before >= self._patience.window_bytes else broken + 1
                if broken >= self._patience.broken_max:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _pieces(self, response: aiohttp.ClientResponse, left: int) -> AsyncIterator[bytes]:
        """Gather what comes to pieces worth a write; what trickles is given up."""
        loop, patience = asyncio.get_running_loop(), self._patience
        gathered, window, ends = bytearray(), 0, loop.time() + patience.window_s
        while left > len(gathered):
            some = await response.content.readany()
            if not some:
                reason = "it ended before its end"
                raise _BrokenOffError(reason)
            if len(some) > left - len(gathered):
                reason = "it sends more bytes than the manifest says"
                raise SourceError(reason)
            gathered += some
            window += len(some)
            if loop.time() >= ends:
                if window < patience.window_bytes:
                    reason = f"it is too slow: {window} bytes in {patience.window_s:g} s"
                    raise SourceError(reason)
                window, ends = 0, loop.time() + patience.window_s
            if len(gathered) >= PIECE_BYTES:
                left -= len(gathered)
                yield bytes(gathered)
                gathered.clear()
        if gathered:
            yield bytes(gathered)

    @contextlib.asynccontextmanager
    async def _asked(self, path: str, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request, as often as the holder says that it is busy, and once more where a challenge does not count.

        A challenge is good for one request and a few seconds, and aiohttp sends a request again whose connection had just closed.
        """
        base, tls = self._access.base(self._host, self._port), self._access.tls(self._host)
        loop = asyncio.get_running_loop()
        ends, challenges_left = loop.time() + self._patience.busy_s, 1
        while True:
            answer = await self._access.answer(self._session, self._host, self._port, "GET", path)
            proof = answer.headers if answer is not None else {}
            async with self._session.get(
                f"{base}{path}", headers={**headers, **proof}, allow_redirects=False, **tls
            ) as response:
                if response.status == _BUSY and loop.time() < ends:
                    await response.read()
                elif response.status == _NOT_PROVEN and answer is not None and challenges_left:
                    challenges_left -= 1
                    await response.read()
                elif response.status not in (_OK, _PARTIAL):
                    raise _refused(response.status)
                elif answer is not None and not answer.holds(response.headers):
                    raise SourceError(_IMPOSTOR)
                else:
                    yield response
                    return
            await asyncio.sleep(_BUSY_WAIT_S)

    @contextlib.asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """Word what the network does."""
        import aiohttp  # noqa: PLC0415 - see the head of this file

        try:
            yield
        except ChallengeRefusedError as error:
            raise _refused(error.status) from error
        except asyncio.TimeoutError as error:
            reason = f"nothing came for {self._patience.window_s:g} s"
            raise SourceError(reason) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _BrokenOffError(tls_failure(error, self._access.channel) or shown(error)) from error
        except UnicodeError as error:
            # What Python raises of a name that can be none, as one with a part of 64 letters.
            reason = f"its address has no name of a host: {error}"
            raise SourceError(reason) from error


def _refused(status: int) -> SourceError:
    return SourceError(_REASONS.get(status, f"HTTP {status}"), damaged=status == _ABSENT)


def _range(received: int) -> dict[str, str]:
    return {"Range": f"bytes={received}-"} if received else {}


def _check_answer(response: aiohttp.ClientResponse, received: int, file_bytes: int) -> None:
    """Refuse an answer of another size, or of another place, before a byte of it is read.

    Raises:
        SourceError: it does not fit.
    """
    length = response.content_length
    if length != file_bytes - received:
        reason = f"it offers {length} bytes where {file_bytes - received} belong"
        raise SourceError(reason, damaged=True)
    expected = f"bytes {received}-{file_bytes - 1}/{file_bytes}"
    if received and (response.status != _PARTIAL or response.headers.get("Content-Range") != expected):
        reason = "it does not go on where it stopped"
        raise SourceError(reason)
