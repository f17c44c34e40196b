"""What Slurm says of a job while it runs (`scontrol show job`)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

_ASKED_S = 30
_NO_TIME = ("", "None", "N/A", "Unknown")


def ask(job_id: int) -> Mapping[str, str]:
    """Its fields; none, where Slurm does not answer."""
    asked = ["scontrol", "--oneliner", "show", "job", str(job_id)]
    try:
        # Slurm's own, from where it is on this host.
        said = subprocess.run(  # noqa: S603 - as above
            asked, capture_output=True, text=True, timeout=_ASKED_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return read(said, job_id)


def read(said: str, job_id: int) -> Mapping[str, str]:
    """Find a job among those that are said, one a line: a number may be that of an array too, whose tasks are all said then."""
    for line in said.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        if fields.get("JobId") == str(job_id):
            return fields
    return {}


def preempted_at(record: Mapping[str, str]) -> str:
    """When Slurm has begun to take the hosts of a job for another one, and its grace is not over; empty: it has not.

    In the grace the job is said to run, as before. `scancel` leaves it CANCELLED or COMPLETING at once.
    """
    when = record.get("PreemptTime", "")
    return when if record.get("JobState") == "RUNNING" and when not in _NO_TIME else ""
