"""How long a thread has waited for a processor: of a busy machine, or a container's quota, and no hang."""

from __future__ import annotations

from pathlib import Path

_NS = 1_000_000


def waited_ms(thread: int) -> int:
    """How long a thread of this process could have run in all, and did not.

    The second figure of `/proc/self/task/TID/schedstat` (Linux: Documentation/scheduler/sched-stats.rst).

    Args:
        thread: as `threading.get_native_id` numbers it.

    Returns:
        Milliseconds; 0 where the kernel does not tell, or the thread is over.
    """
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_bytes().split()[1]) // _NS
    except (OSError, IndexError, ValueError):
        return 0
