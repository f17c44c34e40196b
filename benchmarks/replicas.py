"""What does the comparison of the ranks (MS_COMPARE_REPLICAS) cost each save? In one process, with one thread, on models of four shapes."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from recovery.torch.replica_fingerprints import Replicas

SHAPES = ((64, 6), (500, 8), (2048, 1), (256, 60))
"""Width and number of linear layers."""


def measure(width: int, depth: int, saves: int) -> dict[str, float]:
    """Train such a model for a step, and say what all ranks must have alike so many times."""
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    parts: dict[str, list[Any]] = {"model": [model], "optimizer": [optimizer]}
    replicas, took_ms = Replicas(), list[float]()
    for _ in range(saves):
        begun = time.perf_counter()
        replicas.fingerprints(parts)
        took_ms.append(1_000 * (time.perf_counter() - begun))
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*model.parameters(), *states]
    return {
        "megabytes": round(sum(tensor.nbytes for tensor in tensors) / 1e6, 1),
        "tensors": len(tensors),
        "median_ms": round(statistics.median(took_ms), 2),
        "largest_ms": round(max(took_ms), 2),
    }


def main() -> int:
    """Measure. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=50, help="of each model (50)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    for width, depth in SHAPES:
        row = measure(width, depth, options.saves)
        if options.json:
            print(json.dumps(row))
        else:
            print(
                f"{row['megabytes']:6.1f} MB in {row['tensors']:3d} tensors: {row['median_ms']:.2f} ms (at most {row['largest_ms']:.2f})"
            )
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
