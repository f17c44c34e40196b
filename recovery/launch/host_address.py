"""The scheduler's address and this host's own."""

from __future__ import annotations

import ipaddress
import socket

from recovery.errors import SettingError


def resolve(host: str) -> str:
    """The address that every process gets: a name is looked up once, here, so that all mean the same.

    Raises:
        SettingError: the name is unknown.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, ValueError) as error:
        # A ValueError: no name at all (a label too long, a NUL).
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingError(
            "SETTING_RANGE",
            field="--master_addr",
            value=host,
            rule=f"cannot be resolved ({reason or error})",
            next_step="Give the address itself, or a name that this host knows.",
        ) from error


def only_here(named: str, address: str) -> str:
    """Why no other host reaches an address, for people; empty: one may.

    Args:
        named: as it was given.
        address: what it is on this host.
    """
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return ""
    which = f"--master_addr={named}" + (f" is {address} on this host" if named != address else "")
    return (
        f"{which}, which no other host reaches: workers of other hosts would wait in vain. Where there are any, give the address or the name by which "
        "they reach this host (Debian and Ubuntu give a host's own name the address 127.0.1.1 in /etc/hosts)"
    )
