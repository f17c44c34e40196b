"""What the kernel's log says of a process that was killed: /dev/kmsg, which only root may read on most hosts."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8_192
"""The kernel gives one record a read, none longer (Documentation/ABI/testing/dev-kmsg)."""


def message_on(pid: int) -> str:
    """The kernel's sentence on having killed this process for want of memory; empty: it has none, or may not be read."""
    pattern = re.compile(rf"Killed process {pid}\b")
    return next((text for text in _messages() if pattern.search(text)), "")


def _messages() -> Iterator[str]:
    """All that the log still holds, oldest first."""
    try:
        descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except OSError as error:
                # It was overwritten while we read: the next read goes on behind it.
                if error.errno == errno.EPIPE:
                    continue
                # EAGAIN: that was the last.
                return
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]
    finally:
        os.close(descriptor)
