"""Something sends SIGTERM at every start: the attempts that it ends without a new step of the job are counted."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from recovery.launch.attempt import Attempt, History
from recovery.launch.job_view import KnownJob, KnownNode
from recovery.launch.restart_policy import SHORT_ATTEMPT_MS, Decision, Next


def attempt(*, lasted_ms: int = 60_000, status: int = -signal.SIGTERM) -> Attempt:
    return Attempt(number=1, pid=7, status=status, cause=None, how="killed", begun_ms=0, ended_ms=lasted_ms)


def counted(*reached: tuple[int, int] | None, lasted_ms: int = 60_000) -> int:
    history = History()
    for each in reached:
        history.note(attempt(lasted_ms=lasted_ms), reached=each)
    return history.idle_ends


@pytest.mark.parametrize(
    ("reached", "idle"),
    [
        ([(0, 0)] * 3, 3),
        ([(1, 0), (2, 0), (3, 0)], 3),
        ([(1, 5)], 0),
        # Ended before it came to the next generation, once, twice.
        ([(1, 5), (1, 5), (1, 5)], 2),
        ([(1, 5), (2, 0), (3, 6)], 0),
        # Rolled back, and still each generation makes a step.
        ([(1, 90), (2, 50), (3, 10)], 0),
        # Of a standby, beside which the others train.
        ([(1, 5), (1, 9)], 0),
    ],
)
def test_who_ends_behind_a_new_step_is_not_counted(reached: Sequence[tuple[int, int]], idle: int) -> None:
    assert counted(*reached) == idle


def test_where_nobody_knows_of_a_step_the_short_ones_are_counted() -> None:
    assert counted(None, None) == 0
    assert counted(None, None, lasted_ms=SHORT_ATTEMPT_MS - 1) == 2


def test_an_end_of_another_kind_and_a_rank_that_was_handed_over_begin_the_count_again() -> None:
    history = History()
    for ends in (attempt(), attempt(status=-signal.SIGKILL)):
        history.note(ends, reached=(0, 0))
    assert history.idle_ends == 0
    history.note(attempt(), reached=(0, 0))
    history.note(attempt(), reached=(0, 0), handed_over=True)
    assert history.idle_ends == 0


def test_a_generation_has_made_a_step_when_a_rank_is_past_its_plan() -> None:
    def job(*steps: int) -> KnownJob:
        nodes = tuple(KnownNode(node_id=str(rank), rank=rank, step=step) for rank, step in enumerate(steps))
        beside = KnownNode(node_id="standby", step=99)
        return KnownJob(job="j", state="running", nodes=(*nodes, beside), generation=3, began_at_step=10)

    assert [job(10, 10).reached, job(10, 11).reached, job().reached] == [(3, 0), (3, 11), (3, 0)]


def test_the_job_ends_with_an_error_of_its_own_and_not_as_one_that_was_asked_to_stop() -> None:
    again = Decision(next=Next.RELAUNCH, after_ms=0, reason="why")
    assert attempt().as_decided(again) == attempt()
    ended = attempt().as_decided(Decision(next=Next.FAIL, after_ms=0, reason="why", code="JOB_FAILED"))
    assert (ended.status, "SIGTERM" in ended.how, ended.says_job_is_over) == (60, True, False)
