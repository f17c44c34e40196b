"""At which address a node gives its files of checkpoints to others, if it does."""

from __future__ import annotations

import ipaddress

from recovery.config import Settings, SettingsRole
from recovery.transport.local_address import address_towards


def host_of(settings: Settings) -> str:
    """Choose the address; empty: nobody is given anything. Looks a name up, so it may block.

    A node that others know under a loopback address has no others on another host: there nothing is served unless
    MS_CHECKPOINT_COPIES says that there are to be copies.
    """
    wanted = settings.rules.checkpoint_copies
    if settings.role is not SettingsRole.WORKER or wanted == 0:
        return ""
    host = settings.worker_host or address_towards(settings.sched_host, settings.sched_port)
    return host if wanted is not None or not _is_loopback(host) else ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name, or nothing.
        return not host or host == "localhost"
