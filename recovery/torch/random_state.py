"""The random generators that training draws from: Python's, NumPy's if it is loaded, PyTorch's on the CPU and every CUDA device."""

from __future__ import annotations

import logging
import random  # noqa: TID251 - its state is what is kept here, nothing is drawn
import sys
from typing import Any

import torch

_logger = logging.getLogger("recovery.torch")

RandomState = dict[str, Any]
"""Only numbers, text, lists and tensors, so that it loads with weights_only=True."""


def capture_random_state() -> RandomState:
    """Take the state of every generator; nothing is drawn, and no CUDA device is woken for it."""
    version, numbers, gauss = random.getstate()
    # Whether there is a device is not asked: the driver's answer would wake it, and no child could use one.
    cuda = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch ships it without types
    state: RandomState = {
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if cuda else [],
        "cuda_current": torch.cuda.current_device() if cuda else None,
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

    CUDA generators that nobody had touched at the capture are seeded as PyTorch seeds them on first use: as the CPU's was. The one of the device
    that was current goes to the device that is: a rank may come back on another one, or be shown other devices.
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        _restore_cuda(state["cuda"], state.get("cuda_current"))
    elif state["cuda_seed"] is not None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # as above
        torch.cuda.manual_seed_all(state["cuda_seed"])
    if "numpy" in state:
        import numpy  # noqa: PLC0415 - only when the captured program had it

        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))


def _restore_cuda(saved: list[torch.Tensor], saved_current: int | None) -> None:
    # A rank that goes on without devices draws nothing on them.
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = torch.cuda.current_device() if count else 0
    # Files of earlier releases do not say which one was current.
    placed = devices_for(len(saved), here if saved_current is None else saved_current, count, here)
    for number, device in placed.items():
        torch.cuda.set_rng_state(saved[number], device)
    left = sorted(set(range(len(saved))) - set(placed))
    if left:
        _logger.info(
            "event=random_state_not_restored devices=%s there were %d CUDA devices, and here are %d",
            ",".join(map(str, left)),
            len(saved),
            count,
        )


def devices_for(saved: int, saved_current: int, count: int, current: int) -> dict[int, int]:
    """On which device each saved generator goes on: the current one's on the current one, and the one that it takes the place of on its.

    Returns:
        Index here by index there, without those that have no place among the `count` devices here.
    """
    swapped = {saved_current: current, current: saved_current}
    placed = {number: swapped.get(number, number) for number in range(saved)}
    return {number: device for number, device in placed.items() if device < count}
