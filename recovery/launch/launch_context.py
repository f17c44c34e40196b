"""What all processes of one launcher share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from recovery.launch.job_spec import Rejoin
from recovery.launch.job_view import EarlierJob, Members
from recovery.launch.kernel_log import KernelLog
from recovery.launch.notices import Notices
from recovery.launch.placement import Placed
from recovery.launch.ranks_to_take import MissingRank
from recovery.launch.scheduler_contact import Contact
from recovery.launch.start_method import ProcessStarter
from recovery.launch.worker_completion import WorkerCompletion


class Takeover(NamedTuple):
    """How ranks of other hosts are started beside those of this one."""

    after_ms: int
    """How long a rank must be missing."""
    place: Callable[[MissingRank], Placed]


class LaunchContext(NamedTuple):
    """What all processes of one launcher share."""

    environment: Mapping[str, str]
    """The launcher's own."""
    log_dir: Path
    """Where logs and incidents go."""
    max_restarts: int
    """Of one process within an hour."""
    has_stepped: Callable[[], bool]
    """Has any rank of the job ever applied a step?"""
    contact: Contact
    """With the scheduler."""
    members: Members
    """Which processes the scheduler has let in."""
    rejoin: Rejoin
    """Under which node id a lost worker's process is started again."""
    takeover: Takeover | None
    """How ranks of other hosts are started here; None: never."""
    beginner: ProcessStarter
    """Begins them."""
    completion: WorkerCompletion | None
    """Knows whether a worker that ended with 0 was done; None: every one was, a dry run has no scheduler to ask."""
    kernel_log: KernelLog
    """Says of what a process was killed."""
    stop_grace_s: float
    """How long its processes may take to end when somebody asks the job to stop."""
    signals_to_handle: tuple[int, ...] = ()
    """That ask the job to stop, beside SIGTERM, SIGINT, SIGQUIT and SIGHUP."""
    saves_at_end: bool = True
    """Do its ranks save a step when somebody asks the job to stop? Programs that know nothing of recovery are only asked to end."""
    start_patience_ms: int | None = None
    """How long none of a process's starts need begin before the job is given up; None: as long as it takes."""
    notices: Notices | None = None
    """Say that this host is to be taken away; None: nobody does."""
    earlier: EarlierJob | None = None
    """What was known of the job before; None: nobody is asked."""

    @property
    def recovery_enabled(self) -> bool:
        """Does a failure end the job, or is it recovered from?"""
        return self.environment.get("MS_ENABLE_RECOVERY") == "1"
