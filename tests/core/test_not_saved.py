"""A save that failed is said once, by an event, and counted over the run."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.failed_work import KINDS
from recovery.core.ids import RequestId
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from recovery.core.scheduler.views import job_view
from recovery.core.worker import stimuli as s
from tests.core.desk import Desk, running_workers
from tests.core.driven_worker import DrivenWorker


@pytest.mark.parametrize(
    ("what", "kind", "details", "counted"),
    [
        ({}, EventKind.CHECKPOINT_NOT_SAVED, "", "not_saved"),
        ({"in_memory": True}, EventKind.CHECKPOINT_NOT_SAVED, "in memory", "not_saved"),
        ({"uploading": True}, EventKind.UPLOAD_FAILED, "", "not_uploaded"),
    ],
)
def test_the_scheduler_writes_an_event_and_counts(
    what: dict[str, bool], kind: EventKind, details: str, counted: str
) -> None:
    desk = Desk(Rules(worker_count=2))
    first, _ = running_workers(desk)
    failed = m.NotSaved(request_id=first.request(), step=20, reason="the disk is full", **what)

    for _ in range(2):
        # Sent again it has one effect.
        first.send(failed)

    [event] = [one for one in desk.events if one.kind is kind]
    assert (event.rank, event.step, event.reason, event.details) == (0, 20, "the disk is full", details)
    view = job_view(desk.machine.state, desk.now)
    assert [view[field] for field in KINDS.values()] == [int(field == counted) for field in KINDS.values()]
    assert view["last_failed"] == "worker_0, step 20: the disk is full"


def test_the_worker_says_it_until_it_is_answered_in_words_that_fit() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.SaveFailed(RequestId("f"), 7, "x" * 2_000, in_memory=True, uploading=True))
    [said] = driven.sent(m.NotSaved)
    assert (said.step, len(said.reason), said.in_memory, said.uploading) == (7, 1024, True, True)

    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.NotSaved) == [said]
    driven.receive(m.Received(request_id=RequestId("f")))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.NotSaved) == []
