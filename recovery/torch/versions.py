"""Of the framework, and what else of a process decides the order of additions: what a manifest says of whoever saved."""

from __future__ import annotations

import torch


def of_this_process() -> dict[str, str]:
    """By name; what differs at a load is said."""
    return {
        "torch": str(torch.__version__),
        "torch threads": str(torch.get_num_threads()),
        "torch cpu capability": torch.backends.cpu.get_cpu_capability(),
    }
