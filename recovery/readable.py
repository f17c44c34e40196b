"""Is something to be read? A call of its own because `select.select` refuses descriptors from 1,024 on, and a training process may hold more."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


def is_readable(source: FileDescriptorLike, within_s: float = 0) -> bool:
    """Wait until there is something to read, or its end. Of a pidfd: until the process has ended with all its threads; a zombie has.

    Args:
        source: a descriptor, or what has one.
        within_s: seconds to wait at most; 0: only look.

    Raises:
        ValueError: it is closed.
    """
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(within_s * 1_000))
