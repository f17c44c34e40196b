"""What is kept of a secret: never the secret itself."""

from __future__ import annotations

import hashlib

_REQUEST_DIGITS = 32
"""128 bits in hex."""


def token_digest(token: str) -> str:
    """What is stored of a resume token."""
    return hashlib.sha256(token.encode()).hexdigest()


def request_of(secret: str) -> str:
    """The id of the request that only the bearer of this secret can repeat."""
    return token_digest(secret)[:_REQUEST_DIGITS]


def is_request_of(secret: str | None, request_id: str) -> bool:
    """Does this secret prove it? The id alone proves nothing: it is stored, and in answers."""
    return request_of(secret or "") == request_id
