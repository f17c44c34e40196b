"""For which host a request says it is. A web page that lets its own name resolve to this scheduler (DNS rebinding) says its own name."""

from __future__ import annotations

import ipaddress


def is_foreign(host: str, names: frozenset[str]) -> bool:
    """Is a `Host` header none of this scheduler's?

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
