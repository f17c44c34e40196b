"""torch's exception hook, kept from stacking: every world that is formed puts one in front of those before it, and none is ever taken away.

Each writes its world's rank before every line of a traceback. The warm-up's world is the first, so a traceback in the second generation of
rank 2 began with `[rank2]: [rank2]: [rank0]: Traceback`, which no reader of logs takes for one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def hook_kept() -> Iterator[None]:
    """Put the hook back that stands now, whatever is put in front of it inside."""
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook
