"""What the end of a job keeps: where a person or a system asks for it, every rank saves a step before its process is ended."""

from __future__ import annotations

import asyncio

from recovery.core.handover_messages import JobSaved
from recovery.launch import console
from recovery.launch.process_supervisor import GRACE_S
from recovery.launch.scheduler_contact import Contact


async def save_last(contact: Contact, reason: str, grace_s: float, at_once: asyncio.Event) -> str:
    """Have the job saved at a step at which all ranks wait. Gives what became of it, for people.

    Args:
        contact: with the scheduler, which must live until this is over.
        reason: who asks for the end.
        grace_s: how long the end of the job may take, with this in it.
        at_once: set when it is to take no time any more.
    """
    # What is left of it is for the processes to end in.
    within_s = grace_s - min(GRACE_S, grace_s / 2)
    if not within_s:
        return "not saved: MS_STOP_GRACE=0 leaves no time for it"
    console.say(
        f"every rank saves a step first, within {within_s:g} s; another signal ends all processes at once"
    )
    saving = asyncio.create_task(contact.stop_job(reason, within_s))
    stopped = asyncio.create_task(at_once.wait())
    await asyncio.wait((saving, stopped), return_when=asyncio.FIRST_COMPLETED)
    is_over = saving.done()
    for task in (saving, stopped):
        task.cancel()
    results = await asyncio.gather(saving, stopped, return_exceptions=True)
    return _outcome(results[0]) if is_over else "not saved: asked to stop again"


def _outcome(saved: JobSaved | BaseException | bool) -> str:
    if not isinstance(saved, JobSaved):
        return f"not saved: the launcher itself failed ({type(saved).__name__}: {saved})"
    if not saved.obstacle:
        return f"saved at step {saved.step}: the same command goes on there"
    last = f"; the last checkpoint is step {saved.step}" if saved.step else ""
    return f"not saved: {saved.obstacle}{last}"
