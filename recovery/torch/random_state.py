"""The random generators that training draws from: Python's, NumPy's if it is loaded, PyTorch's on the CPU and every CUDA device."""

from __future__ import annotations

import random  # noqa: TID251 - its state is what is kept here, nothing is drawn
import sys
from typing import Any

import torch

RandomState = dict[str, Any]
"""Only numbers, lists and uint8 tensors, so that it loads with weights_only=True."""


def capture_random_state() -> RandomState:
    """Take the state of every generator; nothing is drawn."""
    version, numbers, gauss = random.getstate()
    state: RandomState = {
        "python": [version, list(numbers), gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [kind, keys.tolist(), position, has_gauss, cached]
    return state


def restore_random_state(state: RandomState) -> None:
    """Put every captured generator back."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        import numpy  # noqa: PLC0415 - only when the captured program had it

        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
