from __future__ import annotations

import itertools

import pytest

from recovery.core.records import JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import (
    AT_START,
    ENDED,
    JOB_STATES,
    WAITING,
    JobFact,
    new_job,
    next_state,
)
from recovery.core.scheduler.state import SchedulerState


@pytest.mark.parametrize(("state", "fact"), list(itertools.product(JobState, JobFact)))
def test_every_fact_moves_a_job_as_the_table_says_or_cannot_happen(state: JobState, fact: JobFact) -> None:
    expected = JOB_STATES[state].get(fact)
    if expected is None:
        with pytest.raises(AssertionError, match=fact.value):
            next_state(state, fact)
    else:
        assert next_state(state, fact) is expected


def test_every_state_has_its_moves_and_every_fact_its_place() -> None:
    assert set(JOB_STATES) == set(JobState)
    assert {fact for moves in JOB_STATES.values() for fact in moves} == set(JobFact)


def test_every_state_can_be_reached_from_the_first_one() -> None:
    reached = {JobState.FORMING}
    for _ in JobState:
        reached |= {end for state in reached for end in JOB_STATES[state].values()}
    assert reached == set(JobState)


def test_an_ended_job_moves_only_when_a_scheduler_starts() -> None:
    for state, moves in JOB_STATES.items():
        assert (set(moves) <= AT_START) == (state in ENDED)
        assert AT_START.isdisjoint(moves) or state in ENDED


def test_a_plan_is_made_only_where_all_ranks_are_waited_for() -> None:
    assert {state for state, moves in JOB_STATES.items() if JobFact.PLAN_MADE in moves} == WAITING


def test_a_job_changes_by_a_fact_and_what_a_fact_cannot_change_stays() -> None:
    rules = Rules(worker_count=1)
    state = SchedulerState(new_job("job", rules), rules)

    with pytest.raises(AssertionError, match="all ranks done"):
        state.change_job(JobFact.ALL_RANKS_DONE, reason="x")

    assert state.job == new_job("job", rules)
    assert state.change_job(JobFact.FAILED, reason="x").state is JobState.FAILED
