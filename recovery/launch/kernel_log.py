"""What the kernel's log says of a process that was killed: /dev/kmsg, which only root may read on most hosts."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8_192
"""The kernel gives one record a read, none longer (Documentation/ABI/testing/dev-kmsg)."""
_KILLED = re.compile(r"Killed process (\d+)\b")
_KEPT_MAX = 1_000


class KernelLog:
    """The log from now on. What it said before is of no process that begins now, and takes 5 ms to read."""

    def __init__(self) -> None:
        """Go to its end; where it may not be read it says nothing."""
        self._killed: deque[tuple[int, str]] = deque(maxlen=_KEPT_MAX)
        """Process id and sentence, oldest first."""
        try:
            self._descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            self._descriptor = -1

    def message_on(self, pid: int) -> str:
        """The kernel's newest sentence on having killed this process for want of memory; empty: it has none, or may not be read."""
        for text in self._new_messages():
            found = _KILLED.search(text)
            if found:
                self._killed.append((int(found[1]), text))
        return next((text for killed, text in reversed(self._killed) if killed == pid), "")

    def close(self) -> None:
        """Read no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _new_messages(self) -> Iterator[str]:
        while self._descriptor >= 0:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except OSError as error:
                # It was overwritten before we read it: the next read goes on behind it.
                if error.errno == errno.EPIPE:
                    continue
                # EAGAIN: that was the last.
                return
            except MemoryError:
                # It only says more of an end that is handled all the same.
                return
            yield record.decode(errors="replace").partition(";")[2].partition("\n")[0]
