"""The states of a job and the facts that move it: one table, which the machine follows, the docs draw and a test walks."""

from __future__ import annotations

from enum import Enum

import msgspec

from recovery.core.ids import Generation, Incarnation, RunId
from recovery.core.records import JobRecord, JobState
from recovery.core.rules import Rules


class JobFact(str, Enum):
    """What moves a job."""

    PLAN_MADE = "plan made"
    """All ranks are ready and have a plan."""
    GENERATION_INTERRUPTED = "generation interrupted"
    """A rank was lost, left or stopped, or the data plane broke."""
    CAUSE_FOUND = "cause found"
    """The data plane broke before anybody knew why; now it is known."""
    ALL_RANKS_DONE = "all ranks done"
    FAILED = "failed"
    """It cannot go on: ranks stayed away, nothing in common to go back to, recovery is off, or a worker is not started again."""
    RELAUNCHED = "relaunched"
    """A scheduler starts on a failed job whose ranks are known: the same run, one more try."""
    RELAUNCHED_UNFORMED = "relaunched, unformed"
    """A scheduler starts on a failed job that has not all its ranks yet."""
    RUN_BEGUN = "run begun"
    """A scheduler starts on a finished job that every node has left."""
    RUN_CONTINUED = "run continued"
    """The same, and its run is to go on."""


JOB_STATES: dict[JobState, dict[JobFact, JobState]] = {
    JobState.FORMING: {
        JobFact.PLAN_MADE: JobState.RUNNING,
        JobFact.FAILED: JobState.FAILED,
    },
    JobState.RUNNING: {
        JobFact.GENERATION_INTERRUPTED: JobState.INTERRUPTED,
        JobFact.ALL_RANKS_DONE: JobState.FINISHED,
        JobFact.FAILED: JobState.FAILED,
    },
    JobState.INTERRUPTED: {
        JobFact.PLAN_MADE: JobState.RUNNING,
        JobFact.CAUSE_FOUND: JobState.INTERRUPTED,
        JobFact.FAILED: JobState.FAILED,
    },
    JobState.FINISHED: {
        JobFact.RUN_BEGUN: JobState.FORMING,
        JobFact.RUN_CONTINUED: JobState.INTERRUPTED,
    },
    JobState.FAILED: {
        JobFact.RELAUNCHED: JobState.INTERRUPTED,
        JobFact.RELAUNCHED_UNFORMED: JobState.FORMING,
    },
}
"""All moves of a job. What a state does not list cannot happen in it."""

AT_START = frozenset(
    {JobFact.RELAUNCHED, JobFact.RELAUNCHED_UNFORMED, JobFact.RUN_BEGUN, JobFact.RUN_CONTINUED}
)
"""Facts that only the start of a scheduler brings."""

WAITING = frozenset({JobState.FORMING, JobState.INTERRUPTED})
"""All ranks are waited for."""

ENDED = frozenset({JobState.FINISHED, JobState.FAILED})
"""Nobody trains any more while this process of the scheduler goes on."""


def next_state(state: JobState, fact: JobFact) -> JobState:
    """Look the move up."""
    moves = JOB_STATES[state]
    assert fact in moves, f"a job that is {state.value} knows no move for: {fact.value}"
    return moves[fact]


def new_job(job: str, rules: Rules) -> JobRecord:
    """The row of a job that nobody has stored yet."""
    return JobRecord(
        job=job,
        worker_count=rules.worker_count,
        server_count=rules.server_count,
        run=RunId(1),
        state=JobState.FORMING,
        generation=Generation(0),
        scheduler_incarnation=Incarnation(1),
    )


def next_incarnation(job: JobRecord) -> JobRecord:
    """The stored job's row with the scheduler's next incarnation."""
    return msgspec.structs.replace(job, scheduler_incarnation=Incarnation(job.scheduler_incarnation + 1))
