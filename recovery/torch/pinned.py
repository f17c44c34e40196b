"""Kept memory into which a CUDA device copies by itself: into memory that the system may move, each piece goes through a small buffer of the driver.

On an H200 1.9 GB arrive in 37 ms, without it in 147 (benchmarks/README.md). The tests pretend the driver's answers. Where it refuses, copies go
on as they went without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from functools import partial
from typing import Any

import torch

from recovery.checkpoint.staging_buffer import Mapping

_logger = logging.getLogger("recovery.torch")


def pin(memory: memoryview) -> None:
    """Let the driver hold kept memory where it is, for as long as it is kept. It is asked once."""
    mapped = memory.obj
    if not isinstance(mapped, Mapping) or mapped.before_unmap is not None:
        return
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    code = int(_driver().cudaHostRegister(address, len(memory), 0))
    mapped.before_unmap = partial(_let_go, address, os.getpid(), is_pinned=not code)
    if code:
        text = "copies from the device go through the driver's buffer"
        _logger.warning("event=memory_not_pinned code=%d %s", code, text)
        _clear_error()


def _let_go(address: int, pid: int, *, is_pinned: bool) -> None:
    # A fork has the memory, and no driver.
    if is_pinned and pid == os.getpid() and int(_driver().cudaHostUnregister(address)):
        _clear_error()


def _driver() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch ships it without types


def _clear_error() -> None:
    """The driver's refusal would be taken for one of the next kernel: this one takes it."""
    with contextlib.suppress(Exception):
        torch.zeros(1, device="cuda")
