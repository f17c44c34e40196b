"""What all programs that the comparison measures share: the network, its data, the step, and the lines by which they tell of it.

A line of steps.jsonl is an applied step (`rank`, `step`, `pid`, `wall_ms`) or a mark (`mark`, `rank`, `pid`, `wall_ms`): `entered`, the
imports are made; `world`, the rank's world is formed; `loaded`, its state and its first batch are there.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from work_log import note

STEP_MS = float(os.environ.get("BENCH_STEP_MS", "10"))
SAVE_STEPS = int(os.environ.get("BENCH_SAVE_STEPS", "20"))
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
    time.sleep(STEP_MS / 1000)


def stepped(rank: int, step: int) -> None:
    """The rank has applied a step."""
    note(rank=rank, step=step, pid=os.getpid())


def mark(name: str, rank: int | None = None) -> None:
    """The program has come to a point; `entered` also tells since when the process lives, to 10 ms."""
    lived = {"born_ms": born_ms()} if name == "entered" else {}
    note(mark=name, rank=rank, pid=os.getpid(), **lived)


def born_ms() -> float:
    """When this process was forked, wall ms: /proc counts from the start of the machine, in ticks."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return (time.time() - age_s) * 1000
