"""Which GPU a rank has, and what its collectives go over: one rule for the three lines, Accelerate, transformers and Lightning.

A rank has the GPU of its local rank. NCCL refuses two ranks on one GPU, so where a host shows fewer GPUs than it has ranks, they share them, and
all that was not asked for goes over gloo.
"""

from __future__ import annotations

import logging
import os

import torch

from recovery import end_note
from recovery.torch.session_interface import SessionInterface

_logger = logging.getLogger("recovery.torch")
_FOR_CPU = "gloo"
_FOR_BOTH = "cpu:gloo,cuda:nccl"
"""As torch chooses where it is not told."""
NCCL = "nccl"
NCCL_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
}
"""Its watchdog neither ends the process nor holds its groups up. What a script or a person has set stays."""


def number_of(local_rank: int, shown: int) -> int:
    """Of a rank's GPU, among so many that this process is shown, at least one."""
    return local_rank % shown


def backend_for(local_world_size: int, shown: int) -> str:
    """What collectives go over where nobody has said it, on a host of so many ranks that shows each of them so many GPUs."""
    return _FOR_BOTH if 0 < local_world_size <= shown else _FOR_CPU


def are_shared(session: SessionInterface) -> bool:
    """Do the ranks of this host have fewer GPUs than they are, and at least one?"""
    shown = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return 0 < shown < session.local_world_size and not _has_its_own(shown)


def _has_its_own(shown: int) -> bool:
    """Is it the one GPU that this process was started with, as each task of Slurm's `--gpus-per-task=1`? Our launcher shows all ranks the same."""
    given = os.environ  # noqa: TID251 - CUDA's own variable, as it reads it itself
    named = given.get("CUDA_VISIBLE_DEVICES", "")
    return shown == 1 and bool(named) and "," not in named and end_note.VARIABLE not in given


def take(session: SessionInterface, backend: str | None = None) -> str:
    """Make this rank's GPU the current one, where there is any; give the backend to form its world with: the one asked for, if any was."""
    if backend == _FOR_CPU or not torch.cuda.is_available():
        return backend or _FOR_CPU
    shown = torch.cuda.device_count()
    torch.cuda.set_device(number_of(session.local_rank, shown))
    ranks = 1 if _has_its_own(shown) else session.local_world_size
    chosen = backend or backend_for(ranks, shown)
    if are_shared(session):
        _logger.warning(
            "event=gpus_shared ranks=%d gpus=%d backend=%s NCCL refuses two ranks on one GPU; where each process is shown a GPU of its own, "
            "ask for nccl",
            session.local_world_size,
            shown,
            chosen,
        )
    return chosen


def leave_end_of_nccl_to_us() -> None:
    """Set NCCL_VARIABLES (process_group.py, fact 11): a group reads them when it is made."""
    for name, value in NCCL_VARIABLES.items():
        os.environ.setdefault(name, value)  # noqa: TID251 - torch reads them there only
