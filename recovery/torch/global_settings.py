"""Settings of PyTorch that hold for a whole process: a script that is run again in it finds them as a fresh process would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

GlobalSettings = tuple[Any, ...]
"""One value for each row of the table."""


def _set_deterministic(mode: int) -> None:
    torch.set_deterministic_debug_mode(mode)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


_TABLE: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),  # noqa: SLF001 - the public one is a context
    (torch.get_deterministic_debug_mode, _set_deterministic),
    (torch.is_anomaly_enabled, torch._C.set_anomaly_enabled),  # noqa: SLF001 - as above
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _attribute(torch.backends.cudnn, "benchmark"),
    _attribute(torch.backends.cudnn, "deterministic"),
    _attribute(torch.backends.cudnn, "allow_tf32"),
)
"""Read and set, a row each. The default device is not among them: a script sets it by its rank, before anything is made there."""


def capture_global_settings() -> GlobalSettings:
    """Take them as they are; no device is woken for it."""
    return tuple(read() for read, _ in _TABLE)


def restore_global_settings(settings: GlobalSettings) -> None:
    """Put back what has changed.

    Args:
        settings: as captured.
    """
    for (read, write), value in zip(_TABLE, settings, strict=True):
        if read() != value:
            write(value)
