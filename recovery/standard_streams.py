"""The standard streams of a process that was started without them, or whose streams cannot be written."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""By descriptor."""


def hold() -> None:
    """Open those that are closed, on nothing.

    Else the next file or socket of this process gets the number, and what a library prints goes into a store or to a peer.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) < len(_STREAMS):
        # As of any process: its children have them too.
        os.set_inheritable(opened, True)
        name, mode = _STREAMS[opened]
        if getattr(sys, name) is None:
            stream = open(opened, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open
            setattr(sys, name, stream)
    os.close(opened)


def send_nowhere(stream: TextIO) -> None:
    """Let what is still held for a stream that cannot be written, and all that follows, be lost without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
