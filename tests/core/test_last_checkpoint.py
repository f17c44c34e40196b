"""Done is a rank's last message: what it has saved is known before, or the job ends without its newest checkpoint."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, NodeId, RequestId
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind, JobRecord, JobState
from recovery.core.rules import Rules
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.requests import REPORT_PATIENCE_MS
from recovery.core.worker.stimuli import WorkerTimer
from tests.core.desk import Desk, checkpoint, running_workers
from tests.core.driven_worker import DrivenWorker, plan


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


def _said(driven: DrivenWorker) -> list[type[object]]:
    sent = [send.message for send in driven.effects_of(we.Send)]
    return [type(message) for message in sent if not isinstance(message, m.Heartbeat)]


@pytest.mark.parametrize("resumed", [True, False])
def test_neither_a_report_nor_the_end_leaves_before_the_row_of_the_report(resumed: bool) -> None:
    """A reconnect sends again what was kept: what still waits for its row is not among that, and Done waits for it."""
    driven = _saved_and_done("a", "b")
    driven.handle(s.ReportStored(RequestId("a")))
    driven.reconnect()
    driven.admitted(resumed=resumed)
    assert [one.checkpoint.step for one in driven.sent(m.CheckpointReport)] == [10]
    assert driven.sent(m.Done) == []
    [timer] = [timer for timer in driven.effects_of(we.SetTimer) if timer.timer is WorkerTimer.REPORTS]
    assert timer.at_ms == REPORT_PATIENCE_MS, (
        "a store that hangs holds the end up for a bounded time here too"
    )
    driven.handle(s.ReportStored(RequestId("b")))
    driven.receive(m.Received(request_id=RequestId("a")))
    driven.receive(m.Received(request_id=RequestId("b")))
    assert _said(driven) == [m.Done]


def test_a_report_whose_row_was_written_while_nobody_listened_leaves_with_the_next_admission() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.CheckpointPublished(RequestId("a"), checkpoint(10)))
    driven.handle(s.Disconnected("cut", 0.5))
    driven.handle(s.ReportStored(RequestId("a")))
    driven.handle(s.Connected())
    driven.admitted(resumed=True)
    assert [one.checkpoint.step for one in driven.sent(m.CheckpointReport)] == [10]


def test_what_a_plan_had_fetched_is_reported_behind_its_row_too() -> None:
    driven = DrivenWorker().admitted()
    driven.found()
    source = m.Source(node_id=NodeId("worker_1"), address="worker_1:1")
    driven.receive(msgspec.structs.replace(plan(1, 10), digest="/10@1", sources=(source,)))
    driven.handle(s.Fetched(RequestId("f"), 1, msgspec.structs.replace(checkpoint(10), digest="/10@1")))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.CheckpointReport) == []
    driven.handle(s.ReportStored(RequestId("f")))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert len(driven.sent(m.CheckpointReport)) == 1


def test_a_restarted_scheduler_hears_of_the_checkpoint_before_it_hears_of_the_end() -> None:
    driven = _saved_and_done("a")
    driven.handle(s.ReportStored(RequestId("a")))
    driven.reconnect()
    assert driven.fire(WorkerTimer.REPORTS, REPORT_PATIENCE_MS) == [], "nobody listens yet"
    driven.admitted(resumed=True)
    assert _said(driven) == [m.CheckpointReport, m.Done]


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
