"""The random generators that training draws from: Python's, NumPy's if it is loaded, PyTorch's on the CPU and every CUDA device."""

from __future__ import annotations

import random  # noqa: TID251 - its state is what is kept here, nothing is drawn
import sys
from typing import Any

import torch

RandomState = dict[str, Any]
"""Only numbers, text, lists and tensors, so that it loads with weights_only=True."""


def capture_random_state() -> RandomState:
    """Take the state of every generator; nothing is drawn, and no CUDA device is woken for it."""
    version, numbers, gauss = random.getstate()
    cuda = _uses_cuda()
    state: RandomState = {
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda else [],
        "cuda_seed": None if cuda else torch.initial_seed(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        numbers_of_numpy = torch.tensor(keys.astype("int64"))
        state["numpy"] = [kind, numbers_of_numpy, int(position), int(has_gauss), float(cached)]
    return state


def restore_random_state(state: RandomState) -> None:
    """Put every captured generator back.

    CUDA generators that nobody had touched at the capture are seeded as PyTorch seeds them on first use: as the CPU's was.
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    elif state["cuda_seed"] is not None and _uses_cuda():
        torch.cuda.manual_seed_all(state["cuda_seed"])
    if "numpy" in state:
        import numpy  # noqa: PLC0415 - only when the captured program had it

        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))


def _uses_cuda() -> bool:
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch ships it without types
