"""What a worker has not been answered goes in windows when it connects again: however much it is, the connection holds."""

from __future__ import annotations

from collections import deque

import pytest

from recovery.core import messages as m
from recovery.core.copy_messages import CopyFailed, CopyReport
from recovery.core.ids import Generation, Rank, RequestId, RunId
from recovery.core.worker import stimuli as s
from recovery.core.worker.effects import Send
from recovery.core.worker.requests import IN_FLIGHT_MAX, Requests
from recovery.core.worker.stimuli import WorkerTimer
from tests.core.desk import checkpoint
from tests.core.driven_worker import DrivenWorker

SAVES = 1_000


def saving(driven: DrivenWorker, first: int, last: int) -> None:
    """Save at every step."""
    for step in range(first, last + 1):
        driven.handle(s.CheckpointPublished(RequestId(f"c{step}"), checkpoint(step)))
        driven.handle(s.ReportStored(RequestId(f"c{step}")))


def back_after(saves: int) -> DrivenWorker:
    """A worker that has saved at every step while the scheduler was away, and is admitted again."""
    driven = DrivenWorker().training()
    driven.handle(s.Disconnected("killed", 0.5))
    saving(driven, 1, saves)
    driven.handle(s.Connected())
    return driven.admitted(resumed=True)


def steps(reports: list[m.CheckpointReport]) -> list[int]:
    return [report.checkpoint.step for report in reports]


def answer(driven: DrivenWorker, request_id: str) -> None:
    driven.receive(m.Received(request_id=RequestId(request_id)))


def answer_all(driven: DrivenWorker) -> list[int]:
    """Answer each report in turn; the steps that were reported, in order."""
    in_flight, seen = deque(driven.sent(m.CheckpointReport)), steps(driven.sent(m.CheckpointReport))
    while in_flight:
        assert len(in_flight) <= IN_FLIGHT_MAX
        answer(driven, in_flight.popleft().request_id)
        in_flight += driven.sent(m.CheckpointReport)
        seen += steps(driven.sent(m.CheckpointReport))
    return seen


def test_however_many_saves_are_not_answered_a_window_goes_at_once_and_each_answer_lets_the_next_go() -> None:
    assert answer_all(back_after(SAVES)) == list(range(1, SAVES + 1))


def test_a_connection_that_is_lost_again_begins_with_what_is_not_answered() -> None:
    driven = back_after(SAVES)
    for step in range(1, 11):
        answer(driven, f"c{step}")
    driven.reconnect()
    driven.admitted(resumed=True)

    assert answer_all(driven) == list(range(11, SAVES + 1))


def test_what_is_saved_meanwhile_holds_nothing_up() -> None:
    driven = back_after(SAVES)
    first = steps(driven.sent(m.CheckpointReport))
    saving(driven, SAVES + 1, SAVES + 1)
    answer(driven, f"c{SAVES + 1}")
    assert steps(driven.sent(m.CheckpointReport)) == [IN_FLIGHT_MAX + 1]
    answer(driven, "c1")

    assert [*first, IN_FLIGHT_MAX + 1, *answer_all(driven)] == list(range(1, SAVES + 1))


def test_done_is_behind_the_last_report() -> None:
    driven = back_after(SAVES)
    driven.handle(s.TrainingDone(RequestId("d"), Generation(1), SAVES))
    driven.fire(WorkerTimer.REPORTS, 10_000)
    assert not driven.sent(m.Done)

    for step in range(1, SAVES - IN_FLIGHT_MAX + 1):
        assert not driven.sent(m.Done)
        answer(driven, f"c{step}")

    assert steps(driven.sent(m.CheckpointReport)) == [SAVES]
    assert [type(send.message) for send in driven.effects_of(Send)] == [m.CheckpointReport, m.Done]


def test_an_answer_to_what_is_held_back_counts() -> None:
    """It was sent before a bounded wait for all answers was over, and then put behind others."""
    driven = back_after(IN_FLIGHT_MAX + 2)
    answer(driven, f"c{IN_FLIGHT_MAX + 2}")
    assert steps(driven.sent(m.CheckpointReport)) == [IN_FLIGHT_MAX + 1]
    answer(driven, "c1")

    assert driven.sent(m.CheckpointReport) == []


def requests(*more: m.CheckpointInvalid | CopyFailed | m.Leave) -> Requests:
    """So many copies that most are held back, and what is asked for behind them."""
    kept = Requests()
    for number in range(2 * IN_FLIGHT_MAX):
        kept.keep(CopyReport(request_id=RequestId(f"r{number}"), rank=Rank(1), checkpoint=checkpoint(number)))
    for request in more:
        kept.keep(request)
    return kept


def of_copy(generation: int) -> CopyFailed:
    return CopyFailed(
        request_id=RequestId("x"),
        run=RunId(1),
        rank=Rank(0),
        step=1,
        digest="",
        failures=(),
        generation=Generation(generation),
    )


@pytest.mark.parametrize(
    ("request_", "waits"),
    [
        (m.Leave(request_id=RequestId("x"), reason="asked"), False),
        (
            m.CheckpointInvalid(
                request_id=RequestId("x"), generation=Generation(1), step=1, path="p", reason="digest"
            ),
            False,
        ),
        (of_copy(generation=2), False),
        (of_copy(generation=0), True),
    ],
)
def test_what_a_plan_or_an_end_waits_for_is_not_held_back(
    request_: m.CheckpointInvalid | CopyFailed | m.Leave, waits: bool
) -> None:
    sent = requests(request_).send_all(now_ms=0)

    assert len(sent) == IN_FLIGHT_MAX + (not waits)


def test_the_last_message_is_behind_a_done() -> None:
    """The scheduler takes nothing from a node that has left."""
    kept = Requests()
    done = m.Done(request_id=RequestId("d"), generation=Generation(1), step=9)
    leave = m.Leave(request_id=RequestId("l"), reason="asked")
    kept.finish(done, 0)
    kept.keep(leave)

    assert [getattr(one, "message", None) for one in kept.send_all(now_ms=0)] == [done, leave]
