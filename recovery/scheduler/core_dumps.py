"""What a core dump of this process may hold: none of its memory, where the job's token and the keys of the secure channel lie.

For the scheduler only. It runs nobody's code but ours, so nobody misses its memory; a dump of a training process is its owner's tool.
Unlike a limit on the size of dumps this also holds where the kernel hands them to a program, as systemd-coredump.
"""

from __future__ import annotations

import logging
from pathlib import Path

_FILTER = Path("/proc/self/coredump_filter")
_logger = logging.getLogger("recovery.scheduler")


def keep_memory_out() -> None:
    """From now on, and in every process that this one starts."""
    try:
        _FILTER.write_text("0", encoding="utf-8")
    except OSError as error:
        _logger.warning(
            "event=core_dumps_hold_memory %s; a core dump of the scheduler holds the job's token", error
        )
