"""Is a file there? Where this process may not look, or a mount is dead, nobody knows: that is an answer of its own, and ends nothing."""

from __future__ import annotations

import os
import stat
from enum import Enum
from pathlib import Path
from typing import NamedTuple


class Kind(str, Enum):
    """What a path leads to, behind its links."""

    ABSENT = "absent"
    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"
    """A pipe, a device, a socket."""
    UNKNOWN = "unknown"
    """It cannot be looked at."""


class Presence(NamedTuple):
    """The answer."""

    kind: Kind
    reason: str = ""
    """Why it cannot be looked at."""

    @property
    def may_be_there(self) -> bool:
        """It is, or nobody knows."""
        return self.kind is not Kind.ABSENT


def look_at(path: Path) -> Presence:
    """Say what is there. Raises nothing."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - as much as can be said of any name
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # ValueError: no file has such a name.
        return Presence(Kind.ABSENT)
    except OSError as error:
        return Presence(Kind.UNKNOWN, str(error.strerror))
    if stat.S_ISREG(mode):
        return Presence(Kind.FILE)
    return Presence(Kind.DIRECTORY if stat.S_ISDIR(mode) else Kind.OTHER)
