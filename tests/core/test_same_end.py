"""A job whose rollbacks lead to the same end is ended, with the step and the ranks in its reason; a network that is away is waited for."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.policy.next_plan import NETWORK_MS, SAME_ENDS_MAX
from recovery.core.records import STARTS_AGAIN, EventKind, GenerationRecord, JobRecord, JobState
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import PauseTimer
from tests.core.desk import Desk, Worker, begin, running_workers
from tests.core.survivors import could_not, in_memory, ready_with, took


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


def _break(
    desk: Desk, workers: list[Worker], step: int, *, done: int | None = None, saves: int | None = None
) -> None:
    """The data plane breaks at a step of rank 0, and both ranks come back."""
    desk.at(desk.now + 15_000)
    held = [(one.save(saves),) if saves is not None else () for one in workers]
    if done is not None:
        workers[1].done(done)
    workers[0].send(m.CollectiveFailed(generation=workers[0].generation, step=step, reason="Timed out"))
    for one, files in zip(workers, held, strict=True):
        one.ready(*files)
    _let_pause_pass(desk)
    if _job(desk).state is JobState.RUNNING:
        for one in workers:
            one.follow()


def _let_pause_pass(desk: Desk) -> None:
    if PauseTimer() in desk.timers:
        desk.at(desk.timers[PauseTimer()])


def _job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


def test_ranks_of_unequal_length_end_the_job_instead_of_going_round_for_ever(desk: Desk) -> None:
    workers = running_workers(desk)
    for _ in range(SAME_ENDS_MAX - 1):
        _break(desk, workers, 18, done=17)
    assert _job(desk).state is JobState.RUNNING

    _break(desk, workers, 18, done=17)

    assert _job(desk).state is JobState.FAILED
    assert _job(desk).reason.startswith(
        "4 generations in a row, from step 0, have broken at step 18 while rank 1 (step 17) waited behind the end, and no process was lost: "
        "worker_0: the data plane broke at step 18: Timed out."
    )
    assert workers[0].last(m.JobEnded).outcome is m.JobOutcome.JOB_FAILED
    plans = [event.reason for event in desk.events if event.kind is EventKind.PLAN_MADE]
    assert [reason.partition("; ")[2][:13] for reason in plans] == ["", "", "2 generations", "3 generations"]


def test_what_breaks_at_other_steps_or_from_other_checkpoints_is_bad_luck(desk: Desk) -> None:
    workers = running_workers(desk)
    for step in (18, 19) * SAME_ENDS_MAX:
        _break(desk, workers, step)
    for step in (20, 40, 60, 80, 100):
        _break(desk, workers, 107, saves=step)
    assert _job(desk).state is JobState.RUNNING


@pytest.mark.parametrize("found", ["before", "after"])
def test_loss_of_a_process_is_a_cause_and_begins_the_count_again(desk: Desk, found: str) -> None:
    workers = running_workers(desk)
    for _ in range(SAME_ENDS_MAX - 1):
        _break(desk, workers, 18)
    failed = m.CollectiveFailed(generation=workers[0].generation, step=18, reason="reset")
    if found == "after":
        workers[0].send(failed)
    workers[1].send(m.Leave(request_id=workers[1].request(), reason="SIGTERM"))
    workers[1].die()
    workers[1] = Worker(desk, "worker_1")
    workers[1].register()
    for one in workers:
        one.ready()
    for one in workers:
        one.follow()
    for _ in range(SAME_ENDS_MAX - 1):
        _break(desk, workers, 18)
    assert _job(desk).state is JobState.RUNNING
    _break(desk, workers, 18)
    assert _job(desk).state is JobState.FAILED


def test_network_that_is_away_for_less_than_its_time_ends_no_job(desk: Desk) -> None:
    workers = running_workers(desk)
    _break(desk, workers, 0)
    since = desk.now
    while _job(desk).state is JobState.RUNNING:
        _break(desk, workers, 0)
    assert _job(desk).state is JobState.FAILED
    assert since + NETWORK_MS <= desk.now < since + NETWORK_MS + 30_000


@pytest.mark.parametrize("live", [False, True])
def test_world_that_breaks_at_once_is_tried_again_later_and_later(live: bool) -> None:
    """It went round ten times in a second: 6,000 generations were stored of one network that was away."""
    desk = Desk(Rules(worker_count=2, live_rollback=live, topology_timeout_ms=5_000))
    workers = running_workers(desk)
    pauses: list[int] = []
    while _job(desk).state is not JobState.FAILED:
        _break_at_once(desk, workers)
        since = desk.now
        _let_pause_pass(desk)
        pauses.append(desk.now - since)
        for one in workers:
            one.follow()
    assert pauses[:6] == [0, 100, 200, 400, 800, 1_600]
    assert set(pauses[8:-1]) == {10_000}
    assert len(desk.row(GenerationRecord)) < 70
    assert "generations in a row, from step 0, have broken at step 0" in _job(desk).reason


def test_pause_is_over_once_somebody_is_lost_and_waits_for_whoever_takes_the_rank(desk: Desk) -> None:
    workers = running_workers(desk)
    for _ in range(SAME_ENDS_MAX):
        _break_at_once(desk, workers)
        desk.at(desk.now + 1_000)
        for one in workers:
            one.follow()
    _break_at_once(desk, workers)
    assert _job(desk).state is JobState.INTERRUPTED
    workers[1].send(m.Leave(request_id=workers[1].request(), reason="SIGTERM"))
    workers[1].die()
    workers[1] = Worker(desk, "worker_1")
    workers[1].register()
    workers[1].ready()
    assert _job(desk).state is JobState.RUNNING


def _break_at_once(desk: Desk, workers: list[Worker]) -> None:
    workers[0].send(m.CollectiveFailed(generation=workers[0].generation, step=0, reason="refused"))
    for one in workers:
        one.ready()


def test_job_that_was_ended_for_it_goes_on_when_it_is_started_again(desk: Desk) -> None:
    workers = running_workers(desk)
    for _ in range(SAME_ENDS_MAX):
        _break(desk, workers, 18, done=17)
    for one in workers:
        one.die()
    desk.restart()
    for one in workers:
        one.register()
        one.ready()

    assert _job(desk).state is JobState.RUNNING
    assert len(desk.row(GenerationRecord)) == SAME_ENDS_MAX + 1


def test_what_broke_the_data_plane_is_named_once_it_is_known(desk: Desk) -> None:
    """The survivor's collective fails first, and it may start its program again before anybody knows of the death."""
    workers = [Worker(desk, name, starts_again=True) for name in ("worker_0", "worker_1")]
    begin(workers)
    workers[0].send(m.CollectiveFailed(generation=workers[0].generation, step=18, reason="reset"))
    workers[0].die()
    desk.at(desk.now + desk.rules.reconnect_grace_ms)
    broke = "worker_0: the data plane broke at step 18: reset"
    assert (desk.row(GenerationRecord)[-1].ended, _job(desk).reason) == (broke, broke), (
        "a survivor is no cause"
    )
    workers[1].die()
    desk.say(desk.connect(), m.Exited(node_id=workers[1].node_id, pid=1, reason="killed by SIGKILL"))
    killed = "worker_1 lost: killed by SIGKILL"
    assert (desk.row(GenerationRecord)[-1].ended, _job(desk).reason) == (killed, killed)
    lost = {event.node_id: event.details for event in desk.events if event.kind is EventKind.NODE_LOST}
    assert lost == {"worker_0": STARTS_AGAIN, "worker_1": ""}


# --- where the plans go to a rank's memory ------------------------------------------------------------------------------


@pytest.fixture
def live_desk() -> Desk:
    return Desk(Rules(worker_count=2, live_rollback=True))


def _plans(desk: Desk) -> list[str]:
    return [event.reason for event in desk.events if event.kind is EventKind.PLAN_MADE]


def _break_and_stay(
    desk: Desk, workers: list[Worker], *held: m.HeldCheckpoint, done: int | None = None
) -> None:
    """The data plane breaks behind step 17, and both ranks come back with that step in their memories."""
    desk.at(desk.now + 15_000)
    if done is not None:
        workers[1].done(done)
    workers[0].send(m.CollectiveFailed(generation=workers[0].generation, step=17, reason="Timed out"))
    _come_back(desk, workers, *held)


def _come_back(desk: Desk, workers: list[Worker], *held: m.HeldCheckpoint) -> None:
    state = in_memory(17, generation=_job(desk).generation)
    for one in workers:
        ready_with(one, state, *held)
    _let_pause_pass(desk)
    if _job(desk).state is JobState.RUNNING:
        for one in workers:
            one.follow()


def test_ranks_of_unequal_length_end_a_job_that_goes_on_from_memory(live_desk: Desk) -> None:
    workers = running_workers(live_desk)
    for _ in range(SAME_ENDS_MAX - 1):
        _break_and_stay(live_desk, workers, done=17)
        assert workers[0].last(m.Rollback).live_rank == 0
        for one in workers:
            took(one)
    assert _plans(live_desk)[-1] == (
        "rank 0 holds step 17 in its memory, and gives it to all; "
        "3 generations in a row, from step 0, have broken at step 17 while rank 1 (step 17) waited behind the end, and no process was lost"
    )

    _break_and_stay(live_desk, workers, done=17)

    assert _job(live_desk).state is JobState.FAILED
    assert _job(live_desk).reason.startswith("4 generations in a row, from step 0, have broken at step 17")


@pytest.mark.parametrize("breaks_too", [False, True])
def test_state_that_cannot_be_taken_explains_no_generation_before_it(
    live_desk: Desk, breaks_too: bool
) -> None:
    workers = running_workers(live_desk)
    held, _ = (one.save(10) for one in workers)
    for _ in range(NETWORK_MS // 15_000 + 2):
        _break_and_stay(live_desk, workers, held, done=17)
        if _job(live_desk).state is JobState.FAILED:
            break
        assert workers[0].last(m.Rollback).live_rank == 0
        if breaks_too:
            broke = m.CollectiveFailed(generation=workers[0].generation, step=17, reason="reset")
            workers[0].send(broke)
        could_not(workers[1])
        could_not(workers[0], "its source is gone")
        assert _job(live_desk).reason.startswith("worker_1 has not taken the state of step 17")
        _come_back(live_desk, workers, held)
        assert workers[0].last(m.Rollback).live_rank is None
    assert _job(live_desk).state is JobState.FAILED
    assert "generations in a row, from step 10, have broken at step 17" in _job(live_desk).reason


def test_states_that_differ_explain_no_generation_before_them(live_desk: Desk) -> None:
    workers = running_workers(live_desk)
    held, _ = (one.save(10) for one in workers)
    # The first generation of them began at step 0.
    for _ in range(SAME_ENDS_MAX):
        _break_and_stay(live_desk, workers, held, done=17)
        took(workers[0])
        took(workers[1], "another")
        _come_back(live_desk, workers, held)
        assert workers[0].last(m.Rollback).live_rank is None
    assert _job(live_desk).state is JobState.RUNNING
    _break_and_stay(live_desk, workers, held, done=17)
    assert _job(live_desk).state is JobState.FAILED


def test_network_that_is_away_ends_no_job_that_goes_on_from_memory(live_desk: Desk) -> None:
    workers = running_workers(live_desk)
    _break_and_stay(live_desk, workers)
    since = live_desk.now
    while _job(live_desk).state is JobState.RUNNING:
        _break_and_stay(live_desk, workers)
    assert _job(live_desk).state is JobState.FAILED
    assert since + NETWORK_MS <= live_desk.now < since + NETWORK_MS + 30_000
