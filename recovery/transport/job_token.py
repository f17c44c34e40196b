"""The job's token on the wire: a challenge, a proof by the peer that knows the token, and one by the scheduler in return.

`GET /challenge` gives a number used once. The request that follows carries `Recovery-As` (what asks, and its name) and
`Authorization: Recovery-Job-Token CHALLENGE NONCE PROOF`, where the proof is the HMAC-SHA256, keyed with the token, of what is asked. The
answer carries `Recovery-Proof`, so that nobody follows a scheduler that does not know the token. The token itself is never sent.

The scheduler keeps nothing for a challenge that it gives away: it recognises its own by an HMAC of its own key. What it keeps for a few
seconds are those that were answered, so that no proof is taken twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from recovery import clock
from recovery.config.secret import Secret
from recovery.core.message_fields import NODE_ID_PATTERN
from recovery.core.principals import AuthMethod, Principal, PrincipalKind
from recovery.errors import RecoveryPathError

_logger = logging.getLogger("recovery.transport")

CHALLENGE_PATH = "/challenge"
AS_HEADER = "Recovery-As"
PROOF_HEADER = "Recovery-Proof"
SCHEME = "Recovery-Job-Token"

CHALLENGE_MS = 10_000
"""How long a challenge is good. A dial takes 5 s at most; at a tenth of it a stopped-and-continued worker would dial twice."""
LOOK_MS = 1_000
"""At most once in this time a stranger with another token makes the scheduler read the file again. A worker that is refused dials again for `MS_NODE_TIMEOUT`."""
PURPOSE = "recovery job token 1"
_HEX_BYTES = 16
_LAUNCHER = re.compile(r"[A-Za-z0-9.:_-]{1,253}", re.ASCII)
_NEXT_STEP = (
    "Give every process of the job the same MS_RECOVERY_PATH directory, or the same MS_JOB_TOKEN; MS_JOB_TOKEN=off "
    "everywhere where the network is trusted."
)


class JobToken(Secret):
    """What every process of a job knows, and nobody else, as it is set or stored: never empty."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str | None) -> JobToken | None:
        """Take a token, or none."""
        return cls(text) if text is not None else None

    def is_text(self, text: str) -> bool:
        """Is it this one?"""
        return hmac.compare_digest(self.reveal().encode(), text.encode("utf-8", "replace"))

    def proof(self, side: str, asked: Asked, challenge: str, nonce: str) -> str:
        """What only a process that knows the token can say of a request.

        Args:
            side: `client` or `scheduler`.
            asked: what is asked, and as whom.
            challenge: drawn by the scheduler.
            nonce: drawn by the client.
        """
        return _mac(self.reveal().encode(), PURPOSE, side, *asked, challenge, nonce)


class Asked(NamedTuple):
    """A request as the proof covers it."""

    method: str
    path: str
    who: str
    """As in `Recovery-As`: `node worker_0`, `launcher 10.0.0.1`, `viewer`."""
    body_digest: str
    """SHA-256 in hex."""


def asked(method: str, path: str, who: str, body: bytes = b"") -> Asked:
    """Describe a request."""
    return Asked(method, path, who, hashlib.sha256(body).hexdigest())


class Caller:
    """One side that asks: with a token it proves what it is, without one it asks as earlier releases do."""

    def __init__(
        self,
        kind: PrincipalKind,
        name: str = "",
        token: JobToken | None = None,
        stored: Callable[[], str | None] | None = None,
    ) -> None:
        """Name the process that asks.

        Args:
            kind: what it is.
            name: node id of a node, address of a launcher; empty for a viewer.
            token: of the job; None: the network is trusted.
            stored: reads the token where it is kept, None: nowhere any more. It may raise RecoveryPathError. None: the token does not change.
        """
        self.who = f"{kind.value} {name}".rstrip()
        self.token = token
        self._stored = stored

    def renew(self) -> None:
        """Take the token as it is stored now. A process that outlives its recovery path is refused until it knows the token of the new one."""
        if self._stored is None:
            return
        try:
            found = self._stored()
        except RecoveryPathError as error:
            _logger.warning("event=job_token_not_read %s", error)
            return
        # A path without one is not there yet, or not mounted.
        if found is not None:
            self.token = JobToken(found)

    def answer(self, challenge: str, method: str, path: str, body: bytes = b"") -> Answer:
        """Answer a challenge for one request."""
        assert self.token is not None, "without a token nothing is proven"
        nonce, request = secrets.token_hex(_HEX_BYTES), asked(method, path, self.who, body)
        proof = self.token.proof("client", request, challenge, nonce)
        headers = {AS_HEADER: self.who, "Authorization": f"{SCHEME} {challenge} {nonce} {proof}"}
        return Answer(headers, self.token.proof("scheduler", request, challenge, nonce))


class Answer(NamedTuple):
    """What is sent with a request, and what must come back."""

    headers: dict[str, str]
    expected: str
    """`Recovery-Proof` of the answer."""

    def holds(self, headers: Mapping[str, str]) -> bool:
        """Has the scheduler proven that it knows the token?"""
        return hmac.compare_digest(
            self.expected.encode(), headers.get(PROOF_HEADER, "").encode("utf-8", "replace")
        )


class Denied(NamedTuple):
    """The peer has not proven that it belongs to the job."""

    status: int
    reason: str
    """For the one that asks."""


class Proven(NamedTuple):
    """It has."""

    principal: Principal
    headers: dict[str, str]
    """With which the scheduler proves the same of itself."""


class Authenticator:
    """The scheduler's side: gives challenges, and looks at the answers."""

    def __init__(
        self,
        token: JobToken | None,
        host_names: frozenset[str] | None = None,
        stored: Callable[[], str | None] | None = None,
    ) -> None:
        """Nobody has asked yet.

        Args:
            token: of the job: a peer that cannot prove to know it is answered at `/healthz` alone. None: the network is trusted.
            host_names: under which the scheduler is known, in small letters, beside every IP address; a request for another host
                is refused, where no token is to be proven. None: any is.
            stored: as for a Caller.
        """
        self._token, self._host_names, self._stored = token, host_names, stored
        self._looks_at_ms: int | None = 0
        """Not before is the stored token looked at again; None: somebody looks now."""
        self._own_key = secrets.token_bytes(2 * _HEX_BYTES)
        self._used: dict[str, int] = {}
        """Challenges that were answered, with when they would have ended, oldest first."""

    @property
    def is_closed(self) -> bool:
        """Must a peer prove that it knows the token?"""
        return self._token is not None

    def is_foreign(self, host: str) -> bool:
        """Is a `Host` header none of this scheduler's? Where a token is proven any name will do: no web page knows it."""
        named = self._host_names is not None and not self.is_closed
        return named and is_foreign(host, self._host_names or frozenset())

    def is_named(self, host: str) -> bool:
        """Does a `Host` header name this scheduler? A web page that lets its own name resolve to it says its own."""
        return self._host_names is None or not is_foreign(host, self._host_names)

    def bearer(self, headers: Mapping[str, str]) -> Proven | Denied | None:
        """The peer that sends the token itself (RFC 6750), as monitoring systems do, which answer no challenge; None: it does not."""
        assert self._token is not None, "without a token nobody is asked"
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        if not self._token.is_text(given.strip()):
            return Denied(403, f"the bearer token is not that of this job. {_NEXT_STEP}")
        return Proven(Principal(kind=PrincipalKind.VIEWER, name="", known=AuthMethod.TOKEN), {})

    def is_also(self, host_name: str) -> None:
        """The scheduler is known by this name, too."""
        assert self._host_names is not None, "a scheduler that is known by any name needs no other"
        self._host_names |= {host_name.lower().rstrip(".")}

    async def renew(self) -> None:
        """After a proof with another token: take what is stored now. The file may have been removed, and the next process made another."""
        now_ms = clock.monotonic_ms()
        if self._stored is None or self._looks_at_ms is None or now_ms < self._looks_at_ms:
            return
        self._looks_at_ms = None
        try:
            found = await asyncio.to_thread(self._stored)
        except (RecoveryPathError, OSError) as error:
            _logger.warning("event=job_token_not_read %s", error)
            return
        finally:
            self._looks_at_ms = now_ms + LOOK_MS
        if found is not None and self._token is not None and not self._token.is_text(found):
            self._token = JobToken(found)
            _logger.warning(
                "event=job_token_renewed the recovery path has another token than this scheduler began with; it counts from now on"
            )

    def challenge(self) -> str:
        """Draw a number that is good for one answer, soon."""
        drawn = f"{clock.monotonic_ms() + CHALLENGE_MS:x}.{secrets.token_hex(_HEX_BYTES)}"
        return f"{drawn}.{_mac(self._own_key, drawn)}"

    def look_at(
        self, headers: Mapping[str, str], method: str, path: str, body: bytes = b""
    ) -> Proven | Denied:
        """The peer that asks, if it has proven that it knows the token."""
        assert self._token is not None, "without a token nobody is asked"
        now_ms = clock.monotonic_ms()
        given = headers.get("Authorization", "").split(" ")
        if len(given) != 4 or given[0] != SCHEME:  # noqa: PLR2004 - the scheme and its three parts
            return Denied(401, f"the job's token is needed here. {_NEXT_STEP}")
        _, challenge, nonce, proof = given
        ends_ms = self._end_of(challenge)
        if ends_ms is None or ends_ms <= now_ms or challenge in self._used:
            return Denied(
                401,
                f"the challenge is not one of this scheduler's, or over; ask {CHALLENGE_PATH} for another",
            )
        who = headers.get(AS_HEADER, "")
        request = asked(method, path, who, body)
        expected = self._token.proof("client", request, challenge, nonce)
        if not hmac.compare_digest(expected.encode(), proof.encode("utf-8", "replace")):
            return Denied(
                403, f"the job's token of the peer is another one than this scheduler's. {_NEXT_STEP}"
            )
        principal = _principal(who)
        if principal is None:
            return Denied(403, f"{AS_HEADER} names nobody that there is")
        self._forget(now_ms)
        self._used[challenge] = ends_ms
        return Proven(principal, {PROOF_HEADER: self._token.proof("scheduler", request, challenge, nonce)})

    def _end_of(self, challenge: str) -> int | None:
        """When a challenge ends; None: it is none of this scheduler's."""
        drawn, _, mark = challenge.rpartition(".")
        if not hmac.compare_digest(_mac(self._own_key, drawn).encode(), mark.encode("utf-8", "replace")):
            return None
        return int(drawn.partition(".")[0], 16)

    def _forget(self, now_ms: int) -> None:
        """Challenges that are over are refused by their time."""
        while self._used:
            oldest = next(iter(self._used))
            if self._used[oldest] > now_ms:
                return
            del self._used[oldest]


def _principal(who: str) -> Principal | None:
    kind, _, name = who.partition(" ")
    if kind == PrincipalKind.NODE.value and re.match(NODE_ID_PATTERN, name):
        return Principal(kind=PrincipalKind.NODE, name=name, known=AuthMethod.TOKEN)
    if kind == PrincipalKind.LAUNCHER.value and _LAUNCHER.fullmatch(name):
        return Principal(kind=PrincipalKind.LAUNCHER, name=name, known=AuthMethod.TOKEN)
    if who == PrincipalKind.VIEWER.value:
        return Principal(kind=PrincipalKind.VIEWER, name="", known=AuthMethod.TOKEN)
    return None


def _mac(key: bytes, *parts: str) -> str:
    """Only a path may have a line end in it (%0A), and no proof of ours is for such a one: a text has one meaning."""
    return hmac.new(key, "\n".join(parts).encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_foreign(host: str, names: frozenset[str]) -> bool:
    """Is a `Host` header none of this scheduler's? A web page that lets its own name resolve to it (DNS rebinding) says its own name.

    Args:
        host: the header, with or without a port; a browser cannot choose it.
        names: of the scheduler, in small letters, beside every IP address and localhost.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
    name = name.lower().rstrip(".")
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return name != "localhost" and name not in names
    return False
