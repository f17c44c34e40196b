"""Names in a directory, made durable by an fsync of it: some file systems have none (9p, vboxsf, older CIFS)."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

_logger = logging.getLogger("recovery.files")
_LACKING = (errno.EINVAL, errno.ENOTSUP)
_said: set[int] = set()
"""Devices whose file system has none."""


def sync_names(directory: int) -> None:
    """Make the names in an opened directory durable.

    A file system without this call is said once, and what was to be done goes on: content is durable all the same, and a power cut may
    take back the newest names.

    Raises:
        OSError: the fsync failed.
    """
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in _LACKING:
            raise
        device = os.fstat(directory).st_dev
        if device not in _said:
            _said.add(device)
            _logger.warning(
                "event=directory_not_synced path=%r reason=%r its file system makes no names durable: a power cut may take back the newest; "
                "saves go on",
                str(Path(f"/proc/self/fd/{directory}").readlink()),
                error.strerror,
            )
