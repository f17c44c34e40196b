"""What saves of killed processes have left half-written: each may be as large as a checkpoint, and none will ever be one."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from recovery.checkpoint import names
from recovery.checkpoint.files import TEMPORARY_SUFFIX, reason_of

_logger = logging.getLogger("recovery.checkpoint")
_TEMPORARY = re.compile(
    rf"\.(?P<name>.+)\.(?P<pid>[1-9][0-9]*)-[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}", re.DOTALL
)
"""As files.py makes the name."""


def remove_leftovers(directory: Path, prefix: str) -> None:
    """Remove what processes that are gone have begun to save under a prefix, which nobody else saves under now.

    A manifest that was ready stays: it says whose the file is that it was written for (catalogue.py). What cannot be removed stays too, and
    is logged.

    Args:
        directory: where; absent: nothing is there.
        prefix: that the caller saves under.
    """
    removed, freed_bytes = 0, 0
    try:
        entries = [entry for entry in directory.iterdir() if _is_left_over(entry.name, prefix)]
    except FileNotFoundError:
        return
    except OSError as error:
        _logger.warning("event=leftovers_not_removed path=%s reason=%r", directory, reason_of(error))
        return
    for entry in entries:
        try:
            size = entry.lstat().st_size
            entry.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            _logger.warning("event=leftovers_not_removed path=%s reason=%r", entry, reason_of(error))
            continue
        removed, freed_bytes = removed + 1, freed_bytes + size
    if removed:
        _logger.info(
            "event=leftovers_removed files=%d bytes=%d path=%s of saves that were cut off",
            removed,
            freed_bytes,
            directory,
        )


def _is_left_over(name: str, prefix: str) -> bool:
    match = _TEMPORARY.fullmatch(name)
    if match is None or match["name"].endswith(names.MANIFEST_SUFFIX):
        return False
    parsed = names.parse(Path(match["name"]).stem + names.SUFFIX)
    return parsed is not None and parsed.prefix == prefix and _is_gone(int(match["pid"]))


def _is_gone(pid: int) -> bool:
    """Is there no such process here? One of another host was replaced by the caller, which alone may save under the prefix."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        # Somebody else's, so there is one.
        pass
    return False
