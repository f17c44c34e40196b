"""Where a script of a soak is in this moment, and how far it may go."""

from __future__ import annotations

import os
import time
from pathlib import Path

import recovery
from recovery.core.worker import barrier
from tests.soak import hanging

MOMENTS = os.environ.get("JOB_MOMENTS") == "1"
"""Loading, evaluating and saving take a while, and are told of; no step ends that is later than the file `until` says, where it is there."""
barrier.ANSWER_MS = int(os.environ.get("JOB_ANSWER_MS", barrier.ANSWER_MS))
"""As in small_job: too short for a scheduler on a busy machine."""
_AT = {"rank": -1, "step": 0}
"""The rank of this process, and the last step that it has done."""


def moment(what: str) -> bool:
    """This begins now, and takes a while. True: the rank is to leave it out."""
    if MOMENTS:
        with Path("moments").open("a") as file:
            file.write(f"{what}\n")
        time.sleep(0.02)
    return hanging.is_hung(what, **_AT)


def hold(session: recovery.Session, step: int) -> None:
    """Wait until this step may end."""
    _AT.update(rank=session.rank, step=step)
    until = Path("until")
    while MOMENTS and until.exists() and step > int(until.read_text()):
        session.check()
        time.sleep(0.02)
