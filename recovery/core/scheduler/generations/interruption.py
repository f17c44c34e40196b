"""How a generation ends: it is interrupted, or all its ranks are done."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.records import (
    EventKind,
    JobState,
)
from recovery.core.scheduler import job_end, planned_end
from recovery.core.scheduler.effects import SchedulerEffect, Send
from recovery.core.scheduler.job_states import JobFact
from recovery.core.scheduler.membership.quorum import wait_for_all_ranks
from recovery.core.scheduler.pending_facts import Failure
from recovery.core.scheduler.state import SchedulerState


def interrupt(state: SchedulerState, failure: Failure, now_ms: int) -> list[SchedulerEffect]:
    """End the generation. Survivors are sent the interrupt before anything is written: it promises them nothing.

    It is sent again behind the write: the first one may have overtaken the plan of this very generation.
    """
    reason = failure.reason
    if state.job.state is JobState.INTERRUPTED:
        return [*_another_failure(state, reason, now_ms), *failure.then]
    if state.job.state is not JobState.RUNNING:
        return [*failure.then]
    if not state.rules.recovery_enabled:
        return [*job_end.end(state, m.JobOutcome.JOB_FAILED, reason, now_ms), *failure.then]
    answers: list[Answer] = []
    interrupted = m.Interrupt(generation=state.job.generation, reason=reason[:1024])
    for node in state.workers:
        node.ready, node.done = None, False
        if node.connection is not None and not job_end.has_left(node):
            answers.append(Answer(node.connection, interrupted))
    effects: list[SchedulerEffect] = [Send(answer.connection, interrupted) for answer in answers]
    state.crash_loop, state.rendezvous = failure.crash_loop, None
    ended = msgspec.structs.replace(
        state.generations[-1], ended=reason, ended_step=max(node.record.step for node in state.workers)
    )
    state.generations[-1] = ended
    event = state.event(
        EventKind.GENERATION_INTERRUPTED,
        generation=state.job.generation,
        step=ended.ended_step,
        reason=reason,
    )
    job = state.change_job(JobFact.GENERATION_INTERRUPTED, reason=reason)
    effects.append(Persist((job, ended, event), tuple(answers)))
    return [*effects, *wait_for_all_ranks(state, now_ms), *failure.then]


def _another_failure(state: SchedulerState, reason: str, now_ms: int) -> list[SchedulerEffect]:
    """One more failure of an interrupted generation: the wait begins again, the first failure stays the reason."""
    effects = wait_for_all_ranks(state, now_ms)
    if state.crash_loop is not None:
        state.crash_loop = None
        effects.append(Persist((state.change_job(JobFact.CAUSE_FOUND, reason=reason),)))
    return effects


def end_if_all_done(state: SchedulerState, now_ms: int) -> list[SchedulerEffect]:
    """The job has trained to the end when every rank has."""
    if state.job.state is not JobState.RUNNING or not state.slots[m.Role.WORKER].all_done:
        return []
    step = max(node.record.step for node in state.workers)
    why = planned_end.of_end(state, step)
    reason = f"all {state.rules.world_size} ranks are done at step {step}{why}"
    return job_end.end(state, m.JobOutcome.FINISHED, reason, now_ms)
