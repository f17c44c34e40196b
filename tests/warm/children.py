"""Warm children of a forked process: it brings a server of its own with it, from before its program began."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from tests.warm import requests

_SUBREAPER_OF = 37
"""PR_GET_CHILD_SUBREAPER, of linux/prctl.h."""


def of_this_process(mine: Mapping[str, str], imports: Sequence[str]) -> socket.socket | None:
    """Fork the server of this process; in it, gives the channel that requests come by, else None.

    Args:
        mine: the environment that this process and its server have begun with.
        imports: what they have imported.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        return theirs
    theirs.close()
    parent = os.getpid()
    spawn: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # Popen's own hook

    def execute_child(popen: Any, *arguments: Any) -> None:
        # A process that was forked from this one is no ancestor of the server.
        is_ancestor = os.getpid() == parent and _takes_in_orphans()
        found = requests.of_popen(arguments) if is_ancestor else None
        if found is not None and requests.suits(mine, found[1], imports):
            requests.forked_by(popen, requests.ask(ours, found[0]), requests.pipes_of(arguments))
        else:
            spawn(popen, *arguments)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]  # as above
    return None


def _takes_in_orphans() -> bool:
    """Would a process between be followed by this one as the parent?"""
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(_SUBREAPER_OF, ctypes.byref(found))
    return bool(found.value)
