"""What all programs that the comparison measures share: the network, its data, the step."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

STEP_MS = float(os.environ.get("BENCH_STEP_MS", "10"))
SAVE_STEPS = int(os.environ.get("BENCH_SAVE_STEPS", "20"))
MEMORY_MB = int(os.environ.get("BENCH_MEMORY_MB", "0"))
"""How much memory a process touches besides, so many MB with each of its first steps: the kernel closes nothing of a process before it is free."""
_PART_MB = 64
_touched: list[torch.Tensor] = []
BATCH_SIZE = 32
# Nobody waits for the end: the measuring process kills all.
EPOCHS = 1_000_000


@functools.lru_cache(maxsize=1)
def digits() -> TensorDataset:
    """As many images as scikit-learn's set has: float32 [1797, 784] and int64 [1797]."""
    numbers = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(1797, 784, generator=numbers), torch.randint(10, (1797,), generator=numbers)
    )


def one_step(
    net: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, reduce: Callable[[], None] = lambda: None
) -> None:
    """The step that all systems do; it ends with a sleep, as a device would keep the processor free.

    Args:
        net: wrapped, unless `reduce` does what a wrapper would.
        optimizer: its own.
        batch: images and labels.
        reduce: averages the gradients over the ranks.
    """
    images, labels = batch
    optimizer.zero_grad()
    loss: Any = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    reduce()
    optimizer.step()
    if len(_touched) * _PART_MB < MEMORY_MB:
        _touched.append(torch.ones(_PART_MB << 20, dtype=torch.uint8))
    time.sleep(STEP_MS / 1000)
