"""Sockets to listen on, made here rather than by asyncio: every failure gets the error that names the next step."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from recovery.errors import ProcessError, RecoveryError

BACKLOG = 4_096
"""Connections that the kernel holds while the loop is busy. At asyncio's own 100, the 101st of a large job's workers that dial
in one moment (a scheduler that is back is dialled by all) waits a whole second for its second SYN. The kernel cuts it to net.core.somaxconn."""

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind every address of `host`; port 0 takes a free one, the same for all of them.

    SO_REUSEADDR, so that a restarted scheduler binds at once; no SO_REUSEPORT, so that a second scheduler cannot.

    Raises:
        ProcessError: somebody listens there, or this user may not; `host` does not resolve, or is no address of this machine.
    """
    addresses = await _resolve(host, port)
    found: list[socket.socket] = []
    absent: OSError | None = None
    for family, address in addresses:
        where = (address[0], found[0].getsockname()[1], *address[2:]) if found else address
        try:
            found.append(_bound(family, where))
        except OSError as error:
            if error.errno not in _ABSENT:
                for each in found:
                    each.close()
                raise _explained(host, port, error) from error
            # "localhost" names ::1 also where there is no IPv6.
            absent = error
    if absent is not None and not found:
        raise _explained(host, port, absent) from absent
    return found


async def _resolve(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    next_step = "Set it to an IP address of the scheduler's machine."
    if not host:
        raise ProcessError("HOST_UNUSABLE", host=host, reason="is empty", next_step=next_step)
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, ValueError) as error:
        # A ValueError: no name at all (a label too long, a NUL).
        system_text = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise ProcessError(
            "HOST_UNUSABLE", host=host, reason=f"does not resolve ({system_text})", next_step=next_step
        ) from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in answers))


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        # Here, since with SO_REUSEADDR a port that is taken may show only now.
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _explained(host: str, port: int, error: OSError) -> RecoveryError:
    if error.errno in _ABSENT:
        return ProcessError(
            "HOST_UNUSABLE",
            host=host,
            reason="is no address of this machine, so the scheduler cannot listen there",
            next_step="Start the scheduler on the machine that owns it, or use one of its addresses.",
        )
    code = errno.errorcode.get(error.errno or 0, "")
    system_text = os.strerror(error.errno).lower() if error.errno else str(error)
    return ProcessError(
        "PORT_IN_USE", host=host, port=port, reason=f"{code}: {system_text}" if code else system_text
    )
