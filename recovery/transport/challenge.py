"""The asking side of job_token.py: fetch a challenge, and see what came back. aiohttp is imported late, as in client.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recovery.transport.job_token import CHALLENGE_PATH

if TYPE_CHECKING:
    import aiohttp

_CHALLENGE_BYTES_MAX = 256
_OK = 200
IMPOSTOR = (
    "what answers there does not prove that it knows the job's token: it is no scheduler of this job, "
    "or has MS_JOB_TOKEN=off while this process has a token"
)
REFUSALS = {
    401: "the scheduler asks for the job's token, and this process has none, or its proof came too late: give it the same "
    "MS_RECOVERY_PATH directory or MS_JOB_TOKEN",
    403: "the scheduler does not let this process in: its job token is another one, so MS_RECOVERY_PATH is another "
    "directory than the scheduler's, or MS_JOB_TOKEN differs",
    421: "the scheduler is not known by that host name: use its address, or the name in its own MS_SCHED_HOST",
    503: "the scheduler has too many connections that have not registered (HTTP 503)",
}
"""By HTTP status: why the scheduler does not take a request."""
NOT_LET_IN = frozenset({401, 403, 421})
"""With these it says that it does not take the process for one of its job."""


class ChallengeRefusedError(ConnectionError):
    """A scheduler answers, and gives no challenge: `status` says why."""

    def __init__(self, status: int) -> None:
        """Keep the HTTP status, one of REFUSALS."""
        self.status = status
        super().__init__(REFUSALS[status])


class Proofs:
    """The headers of the newest answer: a WebSocket does not show those of its own."""

    def __init__(self) -> None:
        """Nothing has come back yet."""
        import aiohttp  # noqa: PLC0415 - see the head of this file

        self.headers: Mapping[str, str] = {}
        self.trace = aiohttp.TraceConfig()
        self.trace.on_request_end.append(self._note)

    async def _note(
        self, session: aiohttp.ClientSession, context: Any, ended: aiohttp.TraceRequestEndParams
    ) -> None:
        self.headers = ended.response.headers


def _is_one(text: bytes) -> bool:
    return 0 < len(text) <= _CHALLENGE_BYTES_MAX and text.isascii() and text.decode().isprintable()


async def challenge_of(session: aiohttp.ClientSession, base: str, tls: Mapping[str, Any]) -> str:
    """Ask a scheduler for a challenge.

    Args:
        session: whose connection the answer will go out on.
        base: scheme, host and port.
        tls: what aiohttp is given for TLS; nothing: plain text.

    Raises:
        ChallengeRefusedError: it gives none, for a reason that it names.
        ConnectionError: what answers is no scheduler that asks for a token.
        aiohttp.ClientError: it does not answer.
    """
    async with session.get(f"{base}{CHALLENGE_PATH}", allow_redirects=False, **tls) as response:
        text = b""
        # What has arrived by now may be a part of it.
        while len(text) <= _CHALLENGE_BYTES_MAX and (piece := await response.content.readany()):
            text += piece
        if response.status == _OK and _is_one(text):
            return text.decode()
        if response.status in REFUSALS:
            raise ChallengeRefusedError(response.status)
        raise ConnectionError(IMPOSTOR)
