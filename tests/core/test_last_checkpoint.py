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
from recovery.core.worker.connection import REPORT_PATIENCE_MS
from tests.core.desk import Desk, checkpoint, running_workers
from tests.core.test_member_life import Pocket


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


def _saved_and_done(*requests: str) -> Pocket:
    pocket = Pocket().training()
    for number, request in enumerate(requests, start=1):
        pocket.feel(s.CheckpointPublished(RequestId(request), checkpoint(10 * number)))
    pocket.feel(s.TrainingDone(RequestId("d"), Generation(1), 100))
    return pocket


def test_done_waits_for_the_answer_to_every_report() -> None:
    pocket = _saved_and_done("a", "b")
    assert pocket.told(m.Done) == []
    pocket.hear(m.Received(request_id=RequestId("a")))
    assert pocket.told(m.Done) == []
    pocket.hear(m.Received(request_id=RequestId("b")))
    assert [done.step for done in pocket.told(m.Done)] == [100]


def test_done_waits_for_nothing_where_nothing_was_saved_or_all_is_answered() -> None:
    assert _saved_and_done().told(m.Done)
    pocket = Pocket().training()
    pocket.feel(s.CheckpointPublished(RequestId("a"), checkpoint(10)))
    pocket.hear(m.Received(request_id=RequestId("a")))
    assert pocket.told(m.Done) == []
    pocket.feel(s.TrainingDone(RequestId("d"), Generation(1), 100))
    assert pocket.told(m.Done)


def test_a_store_that_does_not_write_holds_the_end_up_for_a_bounded_time() -> None:
    """The report is told without the row, then Done: the row only says where to look, and the reason is logged."""
    pocket = _saved_and_done("a")
    [timer] = [timer for timer in pocket.got(e.SetTimer) if timer.key == "reports"]
    assert timer.at_ms == REPORT_PATIENCE_MS
    pocket.fire("reports", REPORT_PATIENCE_MS)
    told = [tell.message for tell in pocket.got(we.Tell)]
    assert [type(message) for message in told if not isinstance(message, m.Heartbeat)] == [
        m.CheckpointReport,
        m.Done,
    ]
    [said] = pocket.got(e.Say)
    assert (said.event, said.warning) == ("report_not_stored", True)
    pocket.hear(m.Received(request_id=RequestId("a")))
    assert pocket.fire("reports", 2 * REPORT_PATIENCE_MS) == []


def test_the_timer_means_nothing_when_the_generation_has_ended_meanwhile() -> None:
    pocket = _saved_and_done("a")
    pocket.hear(m.Interrupt(generation=Generation(1), reason="x"))
    pocket.feel(s.TrainingStopped(Generation(1), 100))
    assert pocket.fire("reports", REPORT_PATIENCE_MS) == []
    assert pocket.hear(m.Received(request_id=RequestId("a"))) == []


def test_a_restarted_scheduler_hears_of_the_checkpoint_before_it_hears_of_the_end() -> None:
    pocket = _saved_and_done("a")
    pocket.reconnect()
    assert pocket.fire("reports", REPORT_PATIENCE_MS) == [], "nobody listens yet"
    pocket.admitted(resumed=True)
    told = [tell.message for tell in pocket.got(we.Tell)]
    assert [type(message) for message in told if not isinstance(message, m.Heartbeat)] == [
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
