"""What saves of killed processes have left half-written: each may be as large as a checkpoint, and none will ever be one."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from recovery.checkpoint import names
from recovery.checkpoint.durable_files import TEMPORARY_SUFFIX, is_under_way, reason_of

_logger = logging.getLogger("recovery.checkpoint")
_TEMPORARY = re.compile(
    rf"\.(?P<name>.+)\.(?P<pid>[1-9][0-9]*)-[0-9a-f]{{16}}{re.escape(TEMPORARY_SUFFIX)}", re.DOTALL
)
"""As durable_files.py makes the name."""


def remove_leftovers(directory: Path, prefix: str) -> None:
    """Remove what processes that are gone have begun to save under a prefix, which nobody but the caller saves under now.

    A manifest that was ready stays: it says whose the file is that it was written for (catalogue.py). What cannot be removed stays too, and
    is logged.
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
    return parsed is not None and parsed.prefix == prefix and not _is_written(name, int(match["pid"]))


def _is_written(name: str, pid: int) -> bool:
    """Does a process here write under this temporary name, as far as its pid says?

    A writer on another host is none: the caller took its place, and alone may save under the prefix.
    """
    if pid == os.getpid():
        return is_under_way(name)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        # Somebody else's, so there is one.
        pass
    return True
