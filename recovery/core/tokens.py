"""What is kept of a resume token: never the token itself."""

from __future__ import annotations

import hashlib


def token_digest(token: str) -> str:
    """What is stored of a resume token."""
    return hashlib.sha256(token.encode()).hexdigest()
