"""What jobs have left in this host's memory is removed when a launcher begins, and what its own has left when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from recovery import config
from recovery.checkpoint import memory_tier


def clear_up(environment: Mapping[str, str], *, job_is_over: bool) -> None:
    """Remove what no process holds any more.

    Args:
        environment: of the job.
        job_is_over: none of its processes is left here, and none will be started.

    Raises:
        SettingError: MS_MEMORY_CHECKPOINT_PATH is wrong.
    """
    path = environment.get("MS_RECOVERY_PATH", "")
    ended = Path(path).absolute() if job_is_over and path else None
    memory_tier.clear_up(config.memory_base(environment), ended=ended)
