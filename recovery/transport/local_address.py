"""Addresses and ports of this host: which are its own, and which port is free."""

from __future__ import annotations

import contextlib
import errno
import socket


def is_local(host: str) -> bool:
    """Can this host bind an address of that name, so that a scheduler can listen there? False for a name that does not resolve."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except (OSError, ValueError):
        return False
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def address_towards(host: str, port: int, family: int = 0) -> str:
    """This host's address on the way to another one; empty: there is no way, or the name does not resolve. Sends nothing.

    Args:
        host: address or name.
        port: any, of it.
        family: of which both are, AF_INET or AF_INET6; 0: whichever comes first where a name has both.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, family, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""


def reserved_port(host: str) -> socket.socket:
    """A free port that no other program is given while this socket is open: who means that very port, and shares it (SO_REUSEADDR), listens there.

    So does every server of asyncio, at each of its starts.

    Args:
        host: an IP address of this host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host, 0))
    return holder


def free_port(host: str) -> int:
    """A port of this host that nobody listens on right now, for programs that do not take the kernel's choice (port 0).

    Args:
        host: an IP address; it says whether IPv4 or IPv6 is meant.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def is_taken(host: str, port: int) -> bool:
    """Does somebody hold this port of this host?

    Args:
        host: as of `free_port`.
        port: which.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
