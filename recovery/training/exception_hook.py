"""sys.excepthook, kept while a framework forms a world: each puts a hook of its own in place of the one before.

torch's writes its world's rank before every line of a traceback, and none is ever taken away. The warm-up's world is the first, so a
traceback in the second generation of rank 2 began with `[rank2]: [rank2]: [rank0]: Traceback`, which no reader of logs takes for one.
MindSpore's would print an interrupt as a mistake of the script.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def exception_hook_kept() -> Iterator[None]:
    """Put the present hook back at the end of the block, whatever replaced it inside."""
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook
