"""Sees to it that a job ends whose batch script is gone: `python -m recovery.launch.slurm.batch_watch JOB_ID LOOKS`, a step on another host.

A job that may lose hosts (`--no-kill`) loses that of its batch script too, and Slurm lets it run on without one: nobody would end it or put it back
before its time limit, and the scheduler is gone with that host.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from recovery.config import slurm_allocation as allocation
from recovery.errors import SettingError
from recovery.launch.slurm import job_record

_LOOK_S = 15.0
"""How often it is looked. Slurm itself gives a host up behind its SlurmdTimeout, of minutes."""


def has_lost_its_script(record: Mapping[str, str]) -> bool:
    """Does Slurm let a job run without its batch script's host?"""
    script, hosts = record.get("BatchHost", ""), record.get("NodeList", "")
    if record.get("JobState") != "RUNNING" or not script:
        return False
    try:
        return script not in allocation.expand(hosts, "NodeList")
    except SettingError:
        # A list that cannot be read says nothing.
        return False


def look(job_id: int, found: int, looks: int) -> int:
    """Do what is to be done, where so many looks in a row have found the script's host lost. Gives how many these are now.

    Args:
        job_id: of Slurm.
        found: so many before this one.
        looks: from how many on. Another watcher needs fewer, and this one then finds a job that does not run.
    """
    record = job_record.ask(job_id)
    if not has_lost_its_script(record):
        return 0
    if found + 1 >= looks:
        _end(job_id, record)
    return found + 1


def main(job_id: int, looks: int) -> None:
    """Watch until the job's steps are ended."""
    pause, found = threading.Event(), 0
    while True:
        pause.wait(_LOOK_S)
        found = look(job_id, found, looks)


def _end(job_id: int, record: Mapping[str, str]) -> None:
    """What does not succeed is tried again at the next look."""
    is_last = record.get("Requeue") == "0"
    words = ("scancel", str(job_id)) if is_last else ("scontrol", "requeue", str(job_id))
    outcome = "the job is ended; submit it again" if is_last else "the job goes back into the queue"
    _say(
        record,
        f"{record['BatchHost']} was lost, the host of the batch script and of the scheduler: {outcome} ({' '.join(words)}), and it goes on from what it has saved",
    )
    asked = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - Slurm's own
    if asked.returncode:
        _say(record, f"that was refused, and is tried again: {asked.stderr.strip()}")


def _say(record: Mapping[str, str], text: str) -> None:
    """In the job's output, where this host has that file: `srun`, which writes it, is gone."""
    path = Path(record.get("StdOut", ""))
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("a") as output:
                output.write(f"{text}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
