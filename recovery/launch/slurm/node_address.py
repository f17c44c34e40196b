"""Where the other hosts of an allocation reach one of them."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping

_ASKED_S = 30
_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")


def reached_at(host: str, environment: Mapping[str, str]) -> str:
    """Its name, where it is one of the network; else the address by which Slurm reaches it; the name again, where Slurm does not say."""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        pass
    else:
        return host
    asked = ["scontrol", "show", "node", host]
    try:
        # Slurm's own, from where it is on this host.
        said = subprocess.run(  # noqa: S603 - as above
            asked, env=dict(environment), capture_output=True, text=True, timeout=_ASKED_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return host
    found = _ADDRESS.search(said)
    return found[1] if found else host
