"""The world of programs that are started as torchrun starts them: rank 0's host and a free port, in torchrun's variables."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from recovery.training.session import Session
from recovery.transport.local_address import free_port


def program_address(session: Session) -> str:
    """Where the programs of this generation meet (host:port): of rank 0, which chooses it."""
    return f"{session.host}:{free_port(session.host)}"


def program_variables(session: Session, address: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What this rank's program reads of its world."""
    host, _, port = address.rpartition(":")
    return {**_interfaces(session, environment), "MASTER_ADDR": host, "MASTER_PORT": port}


def _interfaces(session: Session, environment: Mapping[str, str]) -> dict[str, str]:
    """Between hosts, gloo listens where the host's own name points, often to loopback: name the network interface that peers reach."""
    if session.local_world_size == session.world_size or environment.get("GLOO_SOCKET_IFNAME"):
        return {}
    interfaces = psutil.net_if_addrs().items()
    found = [
        name for name, addresses in interfaces if any(each.address == session.host for each in addresses)
    ]
    return {"GLOO_SOCKET_IFNAME": found[0]} if found else {}
