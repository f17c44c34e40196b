"""What nccl is told before a world is formed of it (process_group.py, fact 11)."""

from __future__ import annotations

import os

NAME = "nccl"
VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
}
"""Its watchdog neither ends the process nor holds its groups up. What a script or a person has set stays."""


def leave_its_end_to_us() -> None:
    """Set them: a group reads them when it is made."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)  # noqa: TID251 - torch reads them there only
