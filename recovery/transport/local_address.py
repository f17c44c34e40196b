"""Is an address this host's own? Then the scheduler can listen there."""

from __future__ import annotations

import contextlib
import socket


def is_local(host: str) -> bool:
    """Can this host bind an address of that name? An unknown name is nobody's."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe, contextlib.suppress(OSError):
            probe.bind(address)
            return True
    return False
