"""Are the files and programs there that msrun's flags name? Looked at before anything starts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from recovery.config import rank_table
from recovery.errors import SettingError
from recovery.launch.msrun.binding_file import BindFile


def check_host(typed: Mapping[str, Any], worker_num: int) -> None:
    """Look at this host.

    Args:
        typed: the flags that were given, with their values.
        worker_num: how many workers the job has.

    Raises:
        SettingError: the rank table is none, or not this job's; memory is to be bound and numactl is not installed.
    """
    if "rank_table_file" in typed:
        rank_table.read_rank_table(typed["rank_table_file"], field="--rank_table_file", worker_num=worker_num)
    numa = typed.get("bind_numa", False)
    by_nodes = numa.cpu_nodes or numa.memory_nodes if isinstance(numa, BindFile) else numa
    if by_nodes and shutil.which("numactl") is None:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--bind_numa",
            value=numa,
            rule="needs the program numactl, which is not installed",
            next_step="Install it (Debian and Ubuntu: apt install numactl), or leave the flag out.",
        )
