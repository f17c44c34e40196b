"""What MindSpore's `init()` does, without holding the GIL meanwhile (see world.py, fact 5)."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import mindspore

_logger = logging.getLogger("recovery.mindspore")


def initialize_without_gil() -> None:
    """Form MindSpore's world. Where this release has no such function, and on Ascend, the caller's `init()` alone does it."""
    if mindspore.get_context("device_target") == "Ascend":
        return
    try:
        library = ctypes.CDLL(str(Path(mindspore.__file__).with_name("lib") / "libmindspore_cluster.so"))
        # The mangled name of `bool mindspore::distributed::Initialize()`.
        initialize = library["_ZN9mindspore11distributed10InitializeEv"]
    except (OSError, AttributeError) as error:
        _logger.warning(
            "event=init_blocks %s; this process sends nothing to the scheduler until its world has formed",
            error,
        )
        return
    initialize.restype = ctypes.c_bool
    initialize()
