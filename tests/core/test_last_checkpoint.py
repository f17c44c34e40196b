"""Done is a rank's last message: what it has saved is known before, or the job ends without its newest checkpoint."""

from __future__ import annotations

import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, RequestId
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind, JobRecord, JobState
from recovery.core.rules import Rules
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.requests import REPORT_PATIENCE_MS
from recovery.core.worker.timers import WorkerTimer
from tests.core.desk import Desk, checkpoint, running_workers
from tests.core.driven_worker import DrivenWorker


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


def _saved_and_done(*requests: str) -> DrivenWorker:
    driven = DrivenWorker().training()
    for number, request in enumerate(requests, start=1):
        driven.handle(s.CheckpointPublished(RequestId(request), checkpoint(10 * number)))
    driven.handle(s.TrainingDone(RequestId("d"), Generation(1), 100))
    return driven


def test_done_waits_for_the_answer_to_every_report() -> None:
    driven = _saved_and_done("a", "b")
    assert driven.sent(m.Done) == []
    driven.receive(m.Received(request_id=RequestId("a")))
    assert driven.sent(m.Done) == []
    driven.receive(m.Received(request_id=RequestId("b")))
    assert [done.step for done in driven.sent(m.Done)] == [100]


def test_done_waits_for_nothing_where_nothing_was_saved_or_all_is_answered() -> None:
    assert _saved_and_done().sent(m.Done)
    driven = DrivenWorker().training()
    driven.handle(s.CheckpointPublished(RequestId("a"), checkpoint(10)))
    driven.receive(m.Received(request_id=RequestId("a")))
    assert driven.sent(m.Done) == []
    driven.handle(s.TrainingDone(RequestId("d"), Generation(1), 100))
    assert driven.sent(m.Done)


def test_a_store_that_does_not_write_holds_the_end_up_for_a_bounded_time() -> None:
    """The report is sent without its row, then Done: the row only says where to look, and the reason is logged."""
    driven = _saved_and_done("a")
    [timer] = [timer for timer in driven.effects_of(we.SetTimer) if timer.timer is WorkerTimer.REPORTS]
    assert timer.at_ms == REPORT_PATIENCE_MS
    driven.fire(WorkerTimer.REPORTS, REPORT_PATIENCE_MS)
    sent = [send.message for send in driven.effects_of(we.Send)]
    assert [type(message) for message in sent if not isinstance(message, m.Heartbeat)] == [
        m.CheckpointReport,
        m.Done,
    ]
    [said] = driven.effects_of(e.Log)
    assert (said.event, said.warning) == ("report_not_stored", True)
    driven.receive(m.Received(request_id=RequestId("a")))
    assert driven.fire(WorkerTimer.REPORTS, 2 * REPORT_PATIENCE_MS) == []


def test_the_timer_means_nothing_when_the_generation_has_ended_meanwhile() -> None:
    driven = _saved_and_done("a")
    driven.receive(m.Interrupt(generation=Generation(1), reason="x"))
    driven.handle(s.TrainingStopped(Generation(1), 100))
    assert driven.fire(WorkerTimer.REPORTS, REPORT_PATIENCE_MS) == []
    assert driven.receive(m.Received(request_id=RequestId("a"))) == []


def test_a_restarted_scheduler_hears_of_the_checkpoint_before_it_hears_of_the_end() -> None:
    driven = _saved_and_done("a")
    driven.reconnect()
    assert driven.fire(WorkerTimer.REPORTS, REPORT_PATIENCE_MS) == [], "nobody listens yet"
    driven.admitted(resumed=True)
    sent = [send.message for send in driven.effects_of(we.Send)]
    assert [type(message) for message in sent if not isinstance(message, m.Heartbeat)] == [
        m.CheckpointReport,
        m.Done,
    ]


def test_a_report_behind_the_end_still_counts(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.save(100)
    first.done()
    second.done()
    assert desk.row(JobRecord)[0].state is JobState.FINISHED
    second.save(100)
    assert second.hears(m.Received) == 3
    rows = desk.row(CheckpointRecord)
    assert {(row.rank, row.state) for row in rows} == {
        (0, CheckpointState.COMMITTED),
        (1, CheckpointState.COMMITTED),
    }
    assert desk.kinds().count(EventKind.CHECKPOINT_COMMITTED) == 1
    assert desk.row(JobRecord)[0].state is JobState.FINISHED
