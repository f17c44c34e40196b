"""Are the files and programs there that msrun's flags name? Looked at before anything starts."""

from __future__ import annotations

import shutil

from recovery.config import rank_table
from recovery.errors import SettingError
from recovery.launch.msrun.arguments import Arguments
from recovery.launch.msrun.binding_file import BindFile


def check_host(given: Arguments) -> None:
    """Look at this host.

    Raises:
        SettingError: the rank table is none, or not this job's; memory is to be bound and numactl is not installed.
    """
    if given.rank_table_file is not None:
        rank_table.read_rank_table(
            given.rank_table_file, field="--rank_table_file", worker_num=given.worker_num
        )
    numa = given.bind_numa
    by_nodes = numa.cpu_nodes or numa.memory_nodes if isinstance(numa, BindFile) else numa
    if by_nodes and shutil.which("numactl") is None:
        raise SettingError(
            "SETTING_CONFLICT",
            field="--bind_numa",
            value=given.bind_numa,
            rule="needs the program numactl, which is not installed",
            next_step="Install it (Debian and Ubuntu: apt install numactl), or leave the flag out.",
        )
