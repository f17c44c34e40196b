"""Messages at the wrong moment. Each test is a bug that the simulation or a reader found, kept so that it stays fixed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.effects import Answer, Persist
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RequestId, ResumeToken
from recovery.core.records import EventKind, JobRecord, JobState, NodeRecord, NodeState, RunRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import LeaseTimer, Send
from recovery.core.scheduler.stimuli import MessageReceived, TimerFired
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.driven_worker import DrivenWorker, plan


def _rules(**changes: Any) -> Rules:
    return Rules(**{"worker_count": 2, **changes})


@pytest.fixture
def desk() -> Desk:
    return Desk(_rules())


def _job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


def _node(desk: Desk, name: str) -> NodeRecord:
    return next(row for row in desk.row(NodeRecord) if row.node_id == name)


def _server(desk: Desk) -> Worker:
    return Worker(desk, "ps_0", role=m.Role.SERVER)


def _finished(desk: Desk) -> list[Worker]:
    workers = running_workers(desk)
    for worker in workers:
        worker.done()
    return workers


# --- the end ------------------------------------------------------------------------------------------------------------


def test_no_message_of_the_end_leaves_before_its_write(desk: Desk) -> None:
    first, _ = _finished(desk)
    late = m.Ready(request_id=RequestId("late"), generation=Generation(1), step=0)

    effects = desk.machine.handle(MessageReceived(first.connection, late, "", ResumeToken("x")), desk.now)

    assert not [effect for effect in effects if isinstance(effect, Send)]
    assert [type(step) for effect in effects if isinstance(effect, Persist) for step in effect.then] == [
        Answer
    ]


def test_a_suspect_worker_may_still_hear_of_the_end_after_the_others_have_left(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    first.die()
    second.done()
    second.die()

    desk.at(1_999)

    assert desk.exit is None
    assert isinstance(first.register(), m.JobEnded)


def test_the_scheduler_of_a_finished_job_frees_the_ids_of_those_who_never_came_back(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    first.die()
    second.done()

    desk.at(2_000)

    assert desk.exit is not None
    assert {row.state for row in desk.row(NodeRecord)} == {NodeState.LEFT}


def test_a_relaunch_of_one_that_died_after_its_done_does_not_begin_a_new_run(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.done()
    first.die()
    second.done()

    answer = Worker(desk, "worker_0").register()

    assert isinstance(answer, m.JobEnded)
    assert _job(desk).run == 1


def test_a_server_that_left_just_before_the_end_does_not_disturb_it() -> None:
    desk = Desk(_rules(server_count=1))
    server = _server(desk)
    server.register()
    workers = running_workers(desk)
    server.send(m.Leave(request_id=server.request(), reason="SIGTERM"))
    for worker in workers:
        worker.done()

    server.die()

    assert _node(desk, "ps_0").state is NodeState.LEFT


def test_a_restart_keeps_the_outcome_of_a_finished_run(desk: Desk) -> None:
    _finished(desk)

    desk.restart()

    assert desk.row(RunRecord)[0].outcome == "finished"


# --- servers ------------------------------------------------------------------------------------------------------------


def test_a_server_that_is_ready_does_not_interrupt_training() -> None:
    desk = Desk(_rules(server_count=1))
    server = _server(desk)
    server.register()
    running_workers(desk)

    server.ready()

    assert _job(desk).state is JobState.RUNNING


def test_a_server_cannot_call_a_checkpoint_invalid() -> None:
    desk = Desk(_rules(server_count=1))
    server = _server(desk)
    server.register()
    bad = m.CheckpointInvalid(
        request_id=server.request(), generation=Generation(0), step=1, path="", reason="x"
    )

    heard = server.send(bad)

    assert [type(message) for message in heard] == [m.Received]


# --- late and repeated messages ---------------------------------------------------------------------------------------------


def test_an_interrupt_is_sent_again_behind_its_write(desk: Desk) -> None:
    first, second = running_workers(desk)

    first.die()
    desk.at(500)

    assert second.hears(m.Interrupt) == 2


def test_a_checkpoint_of_an_older_plan_cannot_end_a_newer_one(desk: Desk) -> None:
    first, second = running_workers(desk)
    for worker in (first, second):
        worker.ready(step=1)
    for worker in (first, second):
        worker.follow()
    bad = m.CheckpointInvalid(
        request_id=first.request(), generation=Generation(1), step=5, path="", reason="x"
    )

    first.send(bad)

    assert _job(desk).state is JobState.RUNNING
    assert EventKind.CHECKPOINT_INVALID not in desk.kinds()


def test_who_has_left_says_nothing_more(desk: Desk) -> None:
    first, _ = running_workers(desk)
    first.send(m.Leave(request_id=first.request(), reason="SIGTERM"))

    again = first.send(m.Leave(request_id=first.request(), reason="SIGTERM"))

    assert again == []
    assert desk.kinds().count(EventKind.NODE_LEFT) == 1


def test_a_restart_remembers_that_a_workers_own_code_had_raised(desk: Desk) -> None:
    first, _ = running_workers(desk)
    first.send(
        m.Failure(
            request_id=first.request(), generation=Generation(1), step=3, error="ValueError: x", traceback=""
        )
    )

    desk.restart()
    desk.at(desk.now + 30_000)

    assert "its own code raised ValueError: x" in _job(desk).reason


def test_a_worker_that_missed_its_first_plan_is_sent_it_again(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.die()
    first.generation = Generation(0)

    first.register()

    assert first.follow().generation == 1
    assert second.hears(m.Interrupt) == 0


def test_generations_go_on_above_what_workers_know_when_the_store_was_lost() -> None:
    # Workers of the release before name no job: a scheduler that is not asked to rebuild ends by name (test_foreign_processes.py).
    desk = Desk(msgspec.structs.replace(_rules(), rebuild_store=True))
    workers = [Worker(desk, name) for name in ("worker_0", "worker_1")]
    for worker in workers:
        worker.generation = Generation(7)
        worker.incarnation = Incarnation(3)
        worker.register(keep_token=False)
    for worker in workers:
        worker.ready()

    assert workers[0].last(m.Rollback).generation == 8


def test_a_bad_file_stays_bad_over_a_restart(desk: Desk) -> None:
    first, second = running_workers(desk)
    bad, good = first.save(10), second.save(10)
    first.send(
        m.CheckpointInvalid(
            request_id=first.request(), generation=Generation(1), step=10, path="", reason="digest"
        )
    )
    desk.restart()
    first.register()
    second.register()

    first.ready(bad, checkpoint(5, path="worker_0/5"))
    second.ready(good, checkpoint(5, path="worker_1/5"))

    assert first.follow().step == 5


def test_a_file_that_was_called_bad_is_not_taken_again(desk: Desk) -> None:
    first, second = running_workers(desk)
    bad = first.save(10)
    second.save(10)
    first.send(
        m.CheckpointInvalid(
            request_id=first.request(), generation=Generation(1), step=10, path="", reason="x"
        )
    )

    first.send(m.CheckpointReport(request_id=first.request(), checkpoint=bad))

    assert desk.machine.state.checkpoints.file_of(Rank(0), 10) is None


def test_after_a_pause_the_fresh_lease_ends_as_any_other(desk: Desk) -> None:
    running_workers(desk)
    desk.timers.clear()
    desk.now = 120_000
    desk.handle(TimerFired(LeaseTimer(NodeId("worker_1"))))

    desk.at(150_000)

    assert _node(desk, "worker_1").state is NodeState.LOST


# --- the worker's side ---------------------------------------------------------------------------------------------------


def test_a_plan_that_ended_while_the_one_before_was_left_is_not_opened() -> None:
    driven = DrivenWorker().training()
    driven.receive(plan(2))
    driven.receive(m.Interrupt(generation=Generation(2), reason="x lost"))

    driven.handle(s.TrainingStopped(Generation(1), 3))
    driven.found()

    assert [ready.generation for ready in driven.sent(m.Ready)] == [2]


def test_an_older_interrupt_does_not_drop_the_plan_that_waits() -> None:
    driven = DrivenWorker().training()
    driven.receive(plan(2))
    driven.receive(m.Interrupt(generation=Generation(1), reason="x lost"))

    driven.handle(s.TrainingStopped(Generation(1), 3))

    assert [opened.plan.generation for opened in driven.effects_of(we.OpenGeneration)] == [2]


def test_a_plan_that_waits_is_opened_though_the_data_plane_broke() -> None:
    driven = DrivenWorker().training()
    driven.receive(plan(2))

    driven.handle(s.TrainingStopped(Generation(1), 3, "connection closed by peer"))

    assert [opened.plan.generation for opened in driven.effects_of(we.OpenGeneration)] == [2]


def test_a_broken_data_plane_is_reported_again_after_a_reconnect() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.DataPlaneBroke(Generation(1), 3, "connection closed by peer"))
    driven.reconnect()

    driven.admitted(resumed=True)

    assert [failed.generation for failed in driven.sent(m.CollectiveFailed)] == [1]


def test_a_bad_checkpoint_is_reported_before_ready_after_a_reconnect() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.CheckpointRejected(RequestId("b"), Generation(1), 5, "p", "digest"))
    driven.handle(s.TrainingStopped(Generation(1), 5))
    driven.found()
    driven.reconnect()

    driven.admitted(resumed=True)

    sent = [type(send.message) for send in driven.effects_of(we.Send)]
    assert sent == [m.CheckpointInvalid, m.Ready]


@pytest.mark.parametrize("situation", ["never met", "paused", "done", "a collective has failed"])
def test_who_cannot_train_on_gives_up_after_the_topology_timeout(situation: str) -> None:
    driven = DrivenWorker(topology_timeout_ms=60_000).training()
    if situation != "never met":
        driven.handle(s.StepsDone(Generation(1), 1, 1, 1))
    if situation == "paused":
        driven.handle(s.PauseNoticed(20_000))
    if situation == "done":
        driven.handle(s.TrainingDone(RequestId("d"), Generation(1), 100))
    if situation == "a collective has failed":
        driven.handle(s.DataPlaneBroke(Generation(1), 1, "connection reset"))
    driven.handle(s.Disconnected("cut", 0.5), at=1_000)

    driven.handle(s.ConnectFailed("refused", 0.5), at=60_999)
    early = driven.effects_of(e.Exit)
    driven.handle(s.ConnectFailed("refused", 0.5), at=61_000)

    assert early == []
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == ["SCHEDULER_UNREACHABLE"]


def test_who_trains_needs_no_scheduler() -> None:
    driven = DrivenWorker(topology_timeout_ms=60_000).training()
    driven.handle(s.StepsDone(Generation(1), 1, 1, 1))
    driven.handle(s.Disconnected("cut", 0.5), at=1_000)

    driven.handle(s.ConnectFailed("refused", 0.5), at=10_000_000)

    assert driven.effects_of(e.Exit) == []
