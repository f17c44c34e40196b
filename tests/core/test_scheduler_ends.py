from __future__ import annotations

from typing import Any

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation
from recovery.core.records import (
    CheckpointRecord,
    CheckpointState,
    EventKind,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.stimuli import StopAsked
from recovery.core.scheduler.views import checkpoints_view, generations_view, job_view
from tests.core.desk import Desk, Worker, checkpoint, running_workers


def rules(**changes: Any) -> Rules:
    return Rules(**{"worker_count": 2, **changes})


@pytest.fixture
def desk() -> Desk:
    return Desk(rules())


def job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


def node(desk: Desk, name: str) -> NodeRecord:
    return next(row for row in desk.row(NodeRecord) if row.node_id == name)


def refusal(answer: m.FromScheduler) -> str:
    assert isinstance(answer, m.Refused), answer
    return answer.code


# --- interruptions ------------------------------------------------------------------------------------------------------------


def test_a_broken_data_plane_interrupts_at_once_and_is_named_after_the_loss(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.send(m.CollectiveFailed(generation=first.generation, step=7, reason="reset"))
    assert first.hears(m.Interrupt)
    second.die()
    desk.at(500)
    assert job(desk).reason == "worker_1 lost: connection closed"
    first.send(m.CollectiveFailed(generation=first.generation, step=7, reason="late"))
    desk.at(600)
    assert job(desk).reason == "worker_1 lost: connection closed"


def test_a_worker_that_raised_is_lost_by_its_reason(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.raises()
    assert [event.details for event in desk.events if event.kind is EventKind.NODE_FAILED] == ["T"]
    first.die()
    assert second.last(m.Interrupt).reason == "worker_0 lost: its own code raised ValueError: x"
    assert node(desk, "worker_0").state is NodeState.LOST


def test_leaving_on_purpose_frees_the_id_at_once(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.send(m.Leave(request_id=first.request(), reason="SIGTERM"))
    assert second.last(m.Interrupt).reason == "worker_0 left: SIGTERM"
    first.die()
    assert refusal(first.register()) == "FENCED"
    assert isinstance(Worker(desk, "worker_0").register(), m.Admitted)


def test_a_server_may_leave_without_interrupting_anybody() -> None:
    desk = Desk(rules(server_count=1))
    server = Worker(desk, "server_0", role=m.Role.SERVER)
    server.register()
    first, _ = running_workers(desk)
    server.send(m.Leave(request_id=server.request(), reason="SIGTERM"))
    assert not first.hears(m.Interrupt)


def test_without_recovery_the_first_loss_ends_the_job_everywhere() -> None:
    desk = Desk(rules(recovery_enabled=False))
    first, second = running_workers(desk)
    first.die()
    desk.at(500)
    assert second.last(m.JobEnded).reason == "worker_0 lost: connection closed"
    second.die()
    # Who was cut off before it heard the end may still ask.
    desk.at(desk.now + 500)
    assert desk.exit is not None
    assert desk.exit.code == "JOB_FAILED"


def test_a_lost_worker_that_stays_away_fails_the_job_by_name() -> None:
    desk = Desk(rules(topology_timeout_ms=5_000))
    first, second = running_workers(desk)
    second.die()
    desk.at(600)
    first.beat()
    desk.at(6_000)
    assert "missing: worker_1" in first.last(m.JobEnded).reason
    assert "first failure: worker_1 lost" in first.last(m.JobEnded).reason
    answer = first.register()
    assert isinstance(answer, m.JobEnded)
    # Relaunched on purpose: the same run, one more try.
    desk.restart()
    assert job(desk).state is JobState.INTERRUPTED


def test_job_that_is_tried_again_and_again_names_its_first_failure_and_no_end_since() -> None:
    desk = Desk(rules(topology_timeout_ms=5_000))
    _, second = running_workers(desk)
    second.die()
    reasons = []
    for _ in range(4):
        desk.at(desk.now + 40_000)
        reasons.append(job(desk).reason)
        assert reasons[-1].endswith("; first failure: worker_1 lost: connection closed")
        assert reasons[-1].count("first failure") == 1
        desk.restart()
        assert job(desk).reason == "worker_1 lost: connection closed"
    assert reasons[1:] == [reasons[1]] * 3


def test_job_that_nobody_came_to_names_the_first_try_and_none_since() -> None:
    desk = Desk(rules(topology_timeout_ms=5_000))
    for _ in range(4):
        desk.at(desk.now + 5_000)
        desk.restart()
    [*_, last] = [event.reason for event in desk.events if event.kind is EventKind.JOB_FAILED]
    assert last.count("are here after") == 2


def test_end_of_a_large_world_is_sent_with_its_first_failure() -> None:
    desk = Desk(Rules(worker_count=100, topology_timeout_ms=5_000))
    workers = running_workers(desk, *(f"worker_{number}.example.com" for number in range(100)))
    workers[-1].die()
    desk.at(desk.now + 6_000)
    [whole] = [event.reason for event in desk.events if event.kind is EventKind.JOB_FAILED]
    sent = workers[0].last(m.JobEnded).reason
    assert len(whole) > len(sent) == 1_024
    assert sent.startswith("99 of 100 workers are here after 5 s (MS_TOPO_TIMEOUT); missing: ")
    assert sent.endswith(" ...; first failure: worker_99.example.com lost: connection closed")


def test_long_end_without_a_first_failure_is_cut() -> None:
    desk = Desk(Rules(worker_count=100, topology_timeout_ms=5_000))
    workers = [Worker(desk, f"worker_{number}.example.com") for number in range(99)]
    for worker in workers:
        worker.register()
    desk.at(desk.now + 6_000)
    sent = workers[0].last(m.JobEnded).reason
    assert (len(sent), sent[-4:]) == (1_024, " ...")


def test_a_ready_from_before_the_newest_plan_is_a_leftover(desk: Desk) -> None:
    first, second = running_workers(desk)
    stale = m.Ready(request_id=first.request(), generation=Generation(0), step=0)
    first.send(stale)
    assert job(desk).state is JobState.RUNNING
    # This one knows the plan: it stopped by itself.
    first.ready(step=4)
    assert second.last(m.Interrupt).reason == "worker_0 stopped at step 4"


def test_rendezvous_first_steps_and_late_messages(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.send(m.RendezvousOpen(generation=first.generation, address="h:1"))
    first.send(m.RendezvousOpen(generation=first.generation, address="h:1"))
    assert desk.kinds().count(EventKind.RENDEZVOUS_OPENED) == 1
    assert second.last(m.Rendezvous).address == "h:1"
    first.send(m.StateLoaded(generation=first.generation, step=0))
    assert desk.kinds()[-1] is EventKind.STATE_LOADED
    first.send(m.FirstStep(generation=first.generation, step=1))
    assert desk.kinds().count(EventKind.FIRST_STEP_DONE) == 1
    for late in (
        m.RendezvousOpen(generation=Generation(9), address="h:2"),
        m.StateLoaded(generation=Generation(9), step=1),
        m.FirstStep(generation=Generation(9), step=1),
        m.Done(request_id=first.request(), generation=Generation(9), step=1),
        m.Heartbeat(sequence=1, generation=Generation(9), step=1),
    ):
        first.send(late)
    assert job(desk).state is JobState.RUNNING
    second.register()
    assert second.last(m.Rendezvous).address == "h:1"


def test_a_fresh_process_among_training_ones_interrupts_them(desk: Desk) -> None:
    first, second = running_workers(desk)
    # It replaced itself by exec.
    first.generation, first.incarnation = Generation(0), Incarnation(0)
    first.register()
    assert second.last(m.Interrupt).reason == "worker_0 came back without its training state"


def test_a_node_that_missed_its_plan_is_sent_it_again(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.ready(step=1)
    first.desk.lose(first.connection)
    first.register()
    first.ready(step=1)
    second.ready()
    first.die()
    first.generation = Generation(1)
    first.register()
    assert first.last(m.Rollback).generation == 2


# --- the end ------------------------------------------------------------------------------------------------------------------


def test_done_is_a_barrier_and_the_next_start_is_the_next_run(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    assert job(desk).state is JobState.RUNNING
    second.done()
    assert first.last(m.JobEnded).outcome is m.JobOutcome.FINISHED
    first.die()
    second.die()
    desk.at(desk.now + 500)
    assert desk.exit is not None
    assert desk.exit.code == ""
    assert {row.state for row in desk.row(NodeRecord)} == {NodeState.LEFT}
    desk.restart()
    assert (job(desk).run, job(desk).state) == (2, JobState.FORMING)
    again, _ = running_workers(desk)
    assert (again.incarnation, again.follow().run, again.follow().generation) == (2, 2, 1)


def test_one_that_falls_at_its_last_step_takes_the_others_back_with_it(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    second.die()
    desk.at(500)
    assert first.hears(m.Interrupt)
    assert job(desk).state is JobState.INTERRUPTED


def test_who_missed_the_end_is_sent_it_and_the_next_scheduler_begins_the_next_run(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    second.done()
    # Killed before anybody heard.
    desk.restart()
    assert job(desk).state is JobState.FINISHED
    answer = first.register()
    assert isinstance(answer, m.JobEnded)
    assert answer.outcome is m.JobOutcome.FINISHED
    desk.at(desk.now + 30_000)
    assert desk.exit is not None
    desk.restart()
    fresh = Worker(desk, "worker_0")
    assert isinstance(fresh.register(), m.Admitted)
    assert job(desk).run == 2
    other = Worker(desk, "worker_1")
    other.register()
    desk.at(desk.now + 10_000)


def test_an_ended_scheduler_goes_by_itself_and_answers_with_the_end_until_then(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    second.done()
    assert isinstance(first.ready()[-1], m.JobEnded)
    first.beat()
    desk.at(3_000)
    assert desk.exit is not None


# --- restarts of the scheduler ---------------------------------------------------------------------------------------------------


def test_a_restarted_scheduler_takes_everyone_back_and_nothing_happened(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.save(10)
    second.save(10)
    desk.at(5_000)
    desk.restart()
    for worker in (first, second):
        assert isinstance(worker.register(), m.Admitted)
        assert not worker.hears(m.Interrupt)
        assert not worker.hears(m.Rollback)
    assert desk.machine.state.checkpoints.committed_step == 10
    desk.at(20_000)
    assert job(desk).state is JobState.RUNNING
    assert EventKind.SCHEDULER_RESTARTED in desk.kinds()


def test_a_scheduler_that_is_asked_to_end_writes_that_this_is_no_crash(desk: Desk) -> None:
    running_workers(desk)
    desk.handle(StopAsked("SIGTERM"))
    assert (desk.events[-1].kind, desk.events[-1].reason) == (EventKind.SCHEDULER_STOPPED, "SIGTERM")


def test_a_scheduler_whose_job_has_ended_is_not_stopped(desk: Desk) -> None:
    for worker in running_workers(desk):
        worker.done()
    desk.handle(StopAsked("SIGTERM"))
    assert EventKind.SCHEDULER_STOPPED not in desk.kinds()


def test_a_restarted_scheduler_gives_one_lease_to_return(desk: Desk) -> None:
    first, _ = running_workers(desk)
    desk.at(5_000)
    desk.restart()
    first.register()
    assert refusal(Worker(desk, "worker_1").register()) == "NODE_ALIVE"
    for at in range(6_000, 35_000, 1_000):
        desk.at(at)
        first.beat()
    desk.at(35_000)
    assert isinstance(Worker(desk, "worker_1").register(), m.Admitted)


def test_what_was_left_of_a_window_is_applied_again_after_a_restart(desk: Desk) -> None:
    first, second = running_workers(desk)
    second.die()
    desk.at(20_000)
    first.beat()
    desk.at(20_600)
    desk.restart()
    answer = Worker(desk, "worker_1").register()
    assert isinstance(answer, m.Refused)
    assert answer.retry_after_ms is not None
    assert 9_400 <= answer.retry_after_ms <= 10_500
    assert job_view(desk.machine.state, desk.now)["nodes"][1]["rejoin_left_ms"] == answer.retry_after_ms


def test_a_loss_written_without_its_interruption_is_made_good_at_the_restart(desk: Desk) -> None:
    running_workers(desk)
    lost = node(desk, "worker_1")
    desk.rows[("NodeRecord", "worker_1")] = msgspec.structs.replace(
        lost, state=NodeState.LOST, reason="power"
    )
    desk.restart()
    assert (job(desk).state, job(desk).reason) == (JobState.INTERRUPTED, "worker_1 lost: power")


def test_a_bad_file_written_without_its_interruption_is_made_good_at_the_restart(desk: Desk) -> None:
    workers = running_workers(desk)
    for one in workers:
        one.save(10)
    workers[0].send(m.CollectiveFailed(generation=Generation(1), step=12, reason="reset"))
    for one in workers:
        one.ready(checkpoint(10, path=f"{one.node_id}/10"))
    assert [one.follow().step for one in workers] == [10, 10]
    [of_rank_1] = [row for row in desk.row(CheckpointRecord) if (row.step, row.rank) == (10, 1)]
    desk.rows["CheckpointRecord", 1, 10, 1] = msgspec.structs.replace(
        of_rank_1, state=CheckpointState.INVALID
    )
    desk.restart()
    assert (job(desk).state, job(desk).reason) == (
        JobState.INTERRUPTED,
        "the checkpoint of step 10 is not usable",
    )
    # Who reported the file waits for this, and its report was answered.
    workers[1].register()
    assert workers[1].last(m.Interrupt).generation == 2


def test_answers_kept_for_repeats_are_bounded() -> None:
    desk = Desk(rules(requests_remembered=2))
    first, _ = running_workers(desk)
    for step in range(1, 6):
        first.save(step)
    assert len(desk.machine.state.nodes[first.node_id].answers) == 2


def test_the_view_shows_every_node_by_rank(desk: Desk) -> None:
    running_workers(desk)
    view = job_view(desk.machine.state, desk.now)
    assert [entry["node_id"] for entry in view["nodes"]] == ["worker_0", "worker_1"]
    assert (view["state"], view["generation"]) == ("running", 1)


def test_the_views_show_what_is_held_and_where_training_began(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.save(10)
    second.save(10)
    first.save(20)
    shown = checkpoints_view(desk.machine.state)
    assert [(one["step"], one["rank"], one["state"]) for one in shown] == [
        (20, 0, "published"),
        (10, 0, "committed"),
        (10, 1, "committed"),
    ]
    assert [(one["generation"], one["step"]) for one in generations_view(desk.machine.state)] == [(1, 0)]
    assert checkpoints_view(Desk(rules()).machine.state) == []
