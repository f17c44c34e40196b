"""A rank that holds more checkpoints than a message carries, and connections that end as soon as they are there."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.policy.retention import INDEXED_STEPS
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind
from recovery.core.rules import Rules
from recovery.core.worker import connection
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.stimuli import WorkerTimer
from recovery.transport.codec import decode_from_node, encode
from tests.core.desk import Desk, Worker, checkpoint, running_workers
from tests.core.driven_worker import DrivenWorker, plan

MANY = 6_000
PATH = "/nfs/somebody/experiments/0007/checkpoints/rank_00001/model-1_{step}.ckpt"


def held(first: int, last: int) -> tuple[m.HeldCheckpoint, ...]:
    """Newest first, as a look into the directories gives them."""
    return tuple(checkpoint(step, path=PATH.format(step=step)) for step in range(last, first - 1, -1))


def ready_of(driven: DrivenWorker, found: tuple[m.HeldCheckpoint, ...]) -> m.Ready:
    driven.found(*found)
    [ready] = driven.sent(m.Ready)
    return ready


# --- what is reported -------------------------------------------------------------------------------------------------------


def test_six_thousand_checkpoints_fit_into_one_message_newest_first() -> None:
    driven = DrivenWorker().admitted()
    ready = ready_of(driven, held(1, MANY))

    frame = encode(ready)
    assert decode_from_node(frame, frame_bytes_max=driven.rules.frame_bytes_max) == ready
    assert [one.step for one in ready.held] == list(range(MANY, MANY - len(ready.held), -1))
    assert len(ready.held) > 100
    assert ready.left_out == MANY - len(ready.held)
    [said] = driven.effects_of(e.Log)
    assert (said.event, said.warning) == ("checkpoints_left_out", True)
    assert f"newest {len(ready.held)} of {MANY}" in said.text


def test_the_longest_paths_fit_as_well() -> None:
    driven = DrivenWorker().admitted()
    found = tuple(checkpoint(step, path="\N{GRINNING FACE}" * 1_024) for step in range(1_000, 0, -1))

    assert len(encode(ready_of(driven, found))) < driven.rules.frame_bytes_max


def test_what_fits_is_reported_whole_and_not_logged() -> None:
    driven = DrivenWorker().admitted()
    ready = ready_of(driven, held(1, 50))

    assert (ready.held, ready.left_out) == (held(1, 50), 0)
    assert driven.effects_of(e.Log) == []


@pytest.mark.parametrize("how", ["admitted", "planned", "committed"])
def test_the_committed_checkpoint_is_reported_however_many_newer_ones_there_are(how: str) -> None:
    driven = DrivenWorker().admitted(committed=3 if how == "admitted" else 0)
    if how != "admitted":
        driven.found()
        driven.receive(msgspec.structs.replace(plan(1), committed_step=3 if how == "planned" else 0))
        if how == "committed":
            driven.receive(m.Committed(run=plan(1).run, step=3))
        driven.handle(s.TrainingStopped(plan(1).generation, 9))
    ready = ready_of(driven, held(1, MANY))

    assert ready.held[-1].step == 3
    assert ready.held[-2].step > 3_000
    assert len(encode(ready)) < driven.rules.frame_bytes_max


# --- what the scheduler makes of it ---------------------------------------------------------------------------------------


def test_a_plan_is_made_from_all_that_was_reported_and_only_the_newest_are_indexed() -> None:
    desk = Desk(Rules(worker_count=2))
    workers = running_workers(desk)
    for step in (10, 20):
        for worker in workers:
            worker.save(step)
    workers[1].die()
    desk.at(20_000)
    workers[0].beat()
    desk.at(40_000)
    back = Worker(desk, "worker_1")
    assert isinstance(back.register(), m.Admitted)
    rows = len(desk.row(CheckpointRecord))
    workers[0].send(
        m.Ready(
            request_id=workers[0].request(),
            generation=workers[0].generation,
            step=700,
            held=(*held(21, 700), checkpoint(20, path="worker_0/20"), checkpoint(10, path="worker_0/10")),
            left_out=7,
        )
    )
    assert len(desk.row(CheckpointRecord)) == rows + INDEXED_STEPS
    ready = next(event for event in reversed(desk.events) if event.kind is EventKind.NODE_READY)
    assert ready.details == "7 older checkpoints are not named"
    back.ready(checkpoint(20, path="worker_1/20"), checkpoint(10, path="worker_1/10"))

    assert back.follow().step == 20
    assert len(desk.machine.state.checkpoints.held_records()) == 4


def test_history_that_was_reported_for_a_plan_does_not_stay_in_the_index() -> None:
    desk = Desk(Rules(worker_count=2))
    workers = [Worker(desk, name) for name in ("worker_0", "worker_1")]
    for worker in workers:
        worker.register()
    for worker in workers:
        worker.ready(*held(1, 500))

    assert workers[0].follow().step == 500
    workers[1].follow()
    assert len(desk.machine.state.checkpoints.held_records()) == 2 * INDEXED_STEPS
    for worker in workers:
        worker.save(510)
    retired = [row for row in desk.row(CheckpointRecord) if row.state is CheckpointState.RETIRED]
    assert len(retired) == 2, "one step a rank went with the newest commit, not all of the history"


# --- connections that end at once -----------------------------------------------------------------------------------------


def ends(driven: DrivenWorker, at: int) -> list[we.WorkerEffect]:
    """A connection ends; the dial that follows from it."""
    effects = driven.handle(s.Disconnected("closed", 0.5), at)
    return [effect for effect in effects if isinstance(effect, (we.Connect, we.SetTimer))]


def test_a_connection_that_ends_after_each_handshake_is_dialled_ever_later() -> None:
    driven, waits = DrivenWorker().admitted(), []
    assert ends(driven, 10) == [we.Connect()]
    for _ in range(9):
        driven.handle(s.Connected())
        driven.admitted(resumed=True)
        [dial] = ends(driven, driven.now + 10)
        assert isinstance(dial, we.SetTimer), "the second one that ends at once is not dialled at once"
        waits.append(dial.at_ms - driven.now)
        assert driven.fire(WorkerTimer.DIAL, dial.at_ms) == [we.Connect()]

    assert waits == [37, 75, 150, 300, 600, 750, 750, 750, 750]


def test_the_wait_is_the_same_for_one_that_is_not_even_let_in() -> None:
    driven = DrivenWorker().registering()
    assert ends(driven, 10) == [we.Connect()]
    driven.handle(s.Connected())
    assert ends(driven, 20) == [we.SetTimer(WorkerTimer.DIAL, 20 + 37)]


def test_one_that_has_held_is_dialled_at_once_again() -> None:
    driven = DrivenWorker().admitted()
    for _ in range(5):
        ends(driven, driven.now + 10)
        driven.handle(s.Connected())
        driven.admitted(resumed=True)

    assert ends(driven, driven.now + connection.SETTLED_MS) == [we.Connect()]
