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
NOT_LET_IN = {
    401: "the scheduler asks for the job's token, and this process has none, or its proof came too late: give it the same "
    "MS_RECOVERY_PATH directory or MS_JOB_TOKEN",
    403: "the scheduler does not let this process in: its job token is another one, so MS_RECOVERY_PATH is another "
    "directory than the scheduler's, or MS_JOB_TOKEN differs",
    421: "the scheduler is not known by that host name: use its address, or the name in its own MS_SCHED_HOST",
}
"""By HTTP status: why the scheduler does not let one in."""


class NoChallengeError(ConnectionError):
    """What answers gives no challenge."""

    def __init__(self, status: int) -> None:
        """Say why.

        Args:
            status: of HTTP.
        """
        super().__init__(NOT_LET_IN.get(status, IMPOSTOR))
        self.status = status if status in NOT_LET_IN else None
        """None: it is no scheduler with a token."""


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
        NoChallengeError: it gives none.
        aiohttp.ClientError: it does not answer.
    """
    async with session.get(f"{base}{CHALLENGE_PATH}", **tls) as response:
        text = b""
        # What has arrived by now may be a part of it.
        while len(text) <= _CHALLENGE_BYTES_MAX and (piece := await response.content.readany()):
            text += piece
        if response.status == _OK and _is_one(text):
            return text.decode()
        raise NoChallengeError(response.status)
