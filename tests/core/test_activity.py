"""What a worker notes of its own training: when it began, how far it came, where it was paused, and that it stopped."""

from __future__ import annotations

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RunId
from recovery.core.records import ActivityRecord, NodeRecord, NodeState, StepRecord
from recovery.core.rules import Rules
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.progress import LATE_MS, TrainingIntervals
from recovery.core.worker.stimuli import WorkerTimer
from tests.core.desk import Desk, Worker
from tests.core.driven_worker import DrivenWorker, plan

BEAT_MS = 5_000
ONE = Generation(1)


def noted(stretches: TrainingIntervals) -> tuple[int, int, int, int]:
    row = stretches.record(NodeId("a"), Rank(0), RunId(1), Incarnation(1), stopped=False)
    return row.number, row.first_step, row.step, row.lasting_ms


def test_a_stretch_is_written_in_pieces_that_double() -> None:
    stretches, pieces = TrainingIntervals(heartbeat_ms=BEAT_MS), []
    for beat in range(8):
        stretches.note(ONE, 1 + 10 * beat, BEAT_MS * beat)
        pieces.append(noted(stretches))

    assert pieces == [
        (1, 1, 1, 0),
        (2, 1, 11, 5_000),
        (2, 1, 21, 10_000),
        (3, 21, 31, 5_000),
        (3, 21, 41, 10_000),
        (3, 21, 51, 15_000),
        (3, 21, 61, 20_000),
        (4, 61, 71, 5_000),
    ]


def test_a_note_that_is_late_begins_a_stretch_of_its_own() -> None:
    stretches = TrainingIntervals(heartbeat_ms=BEAT_MS)
    stretches.note(ONE, 1, 0)
    stretches.note(ONE, 9, BEAT_MS + LATE_MS)
    assert noted(stretches) == (2, 1, 9, BEAT_MS + LATE_MS), "not late yet"
    stretches.note(ONE, 9, 2 * (BEAT_MS + LATE_MS) + 1)
    assert noted(stretches) == (3, 9, 9, 0)
    stretches.note(Generation(2), 6, 100_000)
    assert noted(stretches) == (1, 6, 6, 0), "each generation counts from 1"


def trained(driven: DrivenWorker) -> list[ActivityRecord]:
    written = (record for write in driven.effects_of(e.Persist) for record in write.records)
    return [record for record in written if isinstance(record, ActivityRecord)]


def stepped(driven: DrivenWorker, step: int, at: int) -> None:
    driven.handle(s.StepsDone(ONE, step, 1, step), at)


def test_the_first_step_is_noted_at_once_and_waiting_is_not_training() -> None:
    driven = DrivenWorker().training()
    driven.fire(WorkerTimer.HEARTBEAT, 1_000)
    assert trained(driven) == []
    stepped(driven, 1, 2_000)
    [first] = trained(driven)
    assert (first.step, first.lasting_ms, first.due_ms) == (1, 0, BEAT_MS + LATE_MS)
    stepped(driven, 7, 5_000)
    assert trained(driven) == [], "the rest comes with the heartbeats"
    driven.fire(WorkerTimer.HEARTBEAT, 5_000)
    [again] = trained(driven)
    assert (again.step, again.lasting_ms) == (7, 3_000)

    driven.receive(m.Interrupt(generation=ONE, reason="w lost"), 6_000)
    driven.handle(s.TrainingStopped(ONE, 8, ""), 6_100)
    [last] = trained(driven)
    assert (last.step, last.due_ms) == (8, 0)
    driven.fire(WorkerTimer.HEARTBEAT, 10_000)
    assert trained(driven) == []
    [write] = driven.effects_of(e.Persist)
    assert [type(record) for record in write.records] == [StepRecord]


def test_how_far_it_is_is_written_before_it_is_stopped_for_a_script_starts_again_and_forgets_it() -> None:
    driven = DrivenWorker().training()
    stepped(driven, 1, 2_000)
    stepped(driven, 60, 5_000)
    driven.receive(m.Interrupt(generation=ONE, reason="w lost"), 5_000)
    [last] = trained(driven)
    assert (last.step, last.due_ms) == (60, 0)
    kinds = [type(effect) for effect in driven.effects]
    assert kinds.index(e.Persist) < kinds.index(we.Interrupt)


def test_a_script_whose_data_plane_broke_trains_no_more() -> None:
    driven = DrivenWorker().training()
    stepped(driven, 1, 2_000)
    driven.handle(s.DataPlaneBroke(ONE, 4, "closed"), 3_000)
    assert [(row.step, row.due_ms) for row in trained(driven)] == [(4, 0)]
    driven.fire(WorkerTimer.HEARTBEAT, 5_000)
    assert trained(driven) == []


def test_who_comes_back_while_it_trains_says_at_once_how_far_it_is() -> None:
    driven = DrivenWorker().training()
    stepped(driven, 1, 2_000)
    stepped(driven, 9, 4_000)
    driven.reconnect()
    driven.admitted(resumed=True)
    assert [(beat.generation, beat.step) for beat in driven.sent(m.Heartbeat)] == [(ONE, 9)]

    idle = DrivenWorker().admitted()
    idle.reconnect()
    idle.admitted(resumed=True)
    assert idle.sent(m.Heartbeat) == []


def test_a_plan_of_a_later_generation_needs_no_stop_to_be_noted_twice() -> None:
    driven = DrivenWorker().training()
    stepped(driven, 1, 2_000)
    driven.receive(plan(2), 3_000)
    driven.handle(s.TrainingStopped(ONE, 4, ""), 3_500)
    assert [row.due_ms for row in trained(driven)] == [0]
    assert driven.effects_of(we.OpenGeneration)


def test_a_restarted_scheduler_writes_down_whom_it_has_not_heard() -> None:
    desk = Desk(Rules(worker_count=2))
    one, other = Worker(desk, "worker_0"), Worker(desk, "worker_1")
    for worker in (one, other):
        worker.register()
        worker.ready()
    desk.restart()

    found = {row.node_id: row for row in desk.rows.values() if isinstance(row, NodeRecord)}
    assert {row.state for row in found.values()} == {NodeState.SUSPECT}
    assert {row.reason for row in found.values()} == {"not heard since the scheduler restarted"}
    one.register()
    found = {row.node_id: row for row in desk.rows.values() if isinstance(row, NodeRecord)}
    assert found[one.node_id].state is NodeState.LIVE
    assert found[other.node_id].state is NodeState.SUSPECT
