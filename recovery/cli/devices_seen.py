"""How many accelerators of this host the framework sees: it is asked in a process of its own, since this one must stay without it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_TIMEOUT_S = 120
_ASKED = """
import sys
import torch

def count(word):
    if word == "gpu":
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    if word == "xpu":
        return torch.xpu.device_count() if torch.xpu.is_available() else 0
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0

print(count(sys.argv[1]))
"""
"""As torchrun counts (torch.distributed.run.determine_local_world_size)."""


def devices_seen(word: str, environment: Mapping[str, str]) -> int:
    """Ask PyTorch; where it is not installed, or fails, what NVIDIA's driver lists.

    Args:
        word: gpu, xpu, or auto for whatever accelerator there is.
        environment: of the processes to start. PYTHON_EXEC is the interpreter that is asked.
    """
    command = [environment.get("PYTHON_EXEC") or sys.executable, "-c", _ASKED, word]
    try:
        asked = subprocess.run(  # noqa: S603 - our own words
            command, env=dict(environment), capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        return int(asked.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0 if word == "xpu" else gpus_shown(environment.get("CUDA_VISIBLE_DEVICES"))


def gpus_shown(visible: str | None, devices: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Count this host's NVIDIA GPUs without a framework.

    Args:
        visible: CUDA_VISIBLE_DEVICES; None: not set.
        devices: where the driver lists them.
    """
    there = len(list(devices.iterdir())) if devices.is_dir() else 0
    if visible is None:
        return there
    # As CUDA reads it: what stands behind a number that is none is not shown, and one named twice shows none at all.
    names = list(
        itertools.takewhile(
            lambda name: name and not name.startswith("-"), map(str.strip, visible.split(","))
        )
    )
    return min(there, len(names)) if len(set(names)) == len(names) else 0
