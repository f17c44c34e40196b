"""The scheduler as a program of its own: `recovery scheduler`. A training script with MS_ROLE=MS_SCHED does the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from recovery import config, log
from recovery.training import bootstrap, process_end


def serve(environment: Mapping[str, str], *, with_pid: int | None = None) -> NoReturn:
    """Serve one job until it ends, and end this process.

    Args:
        environment: MS_ROLE in it may be missing.
        with_pid: a process to end with; None: of nobody.

    Raises:
        SystemExit: 0, or the exit code of the error that its last line names.
    """
    with process_end.one_clear_line():
        settings = config.load({**environment, "MS_ROLE": "MS_SCHED"})
        log.setup(settings.role.value)
        bootstrap.serve(settings, with_pid=with_pid)
