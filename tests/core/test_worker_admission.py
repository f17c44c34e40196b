"""A worker that asks for its rank: refusals, and what it says once it is admitted."""

from __future__ import annotations

import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, ResumeToken
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.stimuli import WorkerTimer
from tests.core.driven_worker import DrivenWorker, refused


def test_a_refused_worker_says_so_once_and_asks_again_at_the_exact_time() -> None:
    driven = DrivenWorker().registering()
    driven.receive(refused("REJOIN_WINDOW", 17_600), 100)
    assert we.SetTimer(WorkerTimer.DIAL, 17_700) in driven.effects
    assert [said.event for said in driven.effects_of(e.Log)] == ["refused"]
    assert driven.handle(s.Disconnected("refused", 0.5)) == []
    assert driven.fire(WorkerTimer.DIAL, 17_700) == [we.Connect()]
    driven.handle(s.Connected())
    driven.receive(refused("REJOIN_WINDOW", 5))
    assert driven.effects_of(e.Log) == []
    # Still connected: it asks on that connection.
    driven.fire(WorkerTimer.DIAL, 17_705)
    assert [register.request_secret for register in driven.sent(m.Register)] == ["r"]
    assert not driven.effects_of(we.Connect)
    assert we.SetTimer(WorkerTimer.SILENCE, 17_705 + 15_000) in driven.effects


def test_a_refused_worker_is_told_on_the_standing_connection_and_asks_no_more() -> None:
    driven = DrivenWorker().registering()
    driven.receive(refused("NODE_ALIVE", 1_000, connected=True), 100)
    driven.admitted()
    assert driven.effects_of(we.NoteAdmission)
    # The timer of the refusal fires once more, and finds it admitted; later, connecting anew.
    assert driven.fire(WorkerTimer.DIAL, 1_100) == []
    driven.handle(s.Disconnected("cut", 0.5))
    assert driven.fire(WorkerTimer.DIAL, 1_101) == []


def test_who_waits_for_a_refusal_to_run_out_does_not_take_silence_for_a_failure() -> None:
    driven = DrivenWorker().registering()
    driven.receive(refused("REJOIN_WINDOW", 60_000), 100)
    assert driven.fire(WorkerTimer.SILENCE, 15_000) == []
    # Who asks again expects an answer, on that connection too.
    driven.fire(WorkerTimer.DIAL, 60_100)
    assert we.Disconnect() in driven.fire(WorkerTimer.SILENCE, 75_100)


def test_who_was_refused_and_is_admitted_on_the_same_connection_notices_when_it_falls_silent() -> None:
    driven = DrivenWorker().registering()
    driven.receive(refused("NODE_ALIVE", 60_000, connected=True), 100)
    assert driven.fire(WorkerTimer.SILENCE, 15_000) == []
    driven.admitted()
    [due] = [timer for timer in driven.effects_of(we.SetTimer) if timer.timer is WorkerTimer.SILENCE]
    assert we.Disconnect() in driven.fire(WorkerTimer.SILENCE, due.at_ms)


def test_a_scheduler_that_closes_after_asking_again_is_dialled_at_once() -> None:
    driven = DrivenWorker().registering()
    driven.receive(refused("NODE_ALIVE", 1), 100)
    driven.fire(WorkerTimer.DIAL, 101)
    assert driven.handle(s.Disconnected("refused", 0.5), 102) == [we.Connect()]


@pytest.mark.parametrize(("code", "after"), [("WORLD_FULL", None), ("REJOIN_WINDOW", 10)])
def test_what_waiting_cannot_change_or_may_not_wait_ends_at_once(code: str, after: int | None) -> None:
    driven = DrivenWorker(rejoin_wait=False).registering()
    driven.receive(refused(code, after))
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == [code]


def test_a_holder_heard_within_a_whole_lease_is_alive() -> None:
    driven = DrivenWorker(lease_ms=3_000).registering()
    driven.receive(refused("NODE_ALIVE", 1_000, connected=True), 0)
    # Perhaps the holder comes back: the patience with it begins again.
    driven.receive(refused("NODE_ALIVE", 1_000, connected=False), 3_000)
    driven.receive(refused("NODE_ALIVE", 1_000, connected=True), 6_500)
    assert not driven.effects_of(e.Exit)
    driven.receive(refused("NODE_ALIVE", 1_000, connected=True), 6_501)
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == ["NODE_ALIVE"]


def test_a_foreign_token_is_dropped_and_it_registers_again() -> None:
    driven = DrivenWorker().registering(ResumeToken("old"))
    driven.receive(refused("UNKNOWN_TOKEN", 0))
    driven.reconnect()
    assert [register.token for register in driven.sent(m.Register)] == [None]


@pytest.mark.parametrize("knows", [True, False])
def test_what_it_holds_is_said_once_the_scheduler_has_admitted_it(knows: bool) -> None:
    """One whose store was lost would take what it says before for all that it knows of its job."""
    driven = DrivenWorker()
    driven.training()
    driven.handle(s.TrainingStopped(Generation(1), 42))
    driven.reconnect()
    driven.found()
    assert driven.sent(m.Ready) == []
    driven.admitted(resumed=knows, job="job" if knows else "another")
    assert len(driven.sent(m.Ready)) == knows
    if not knows:
        [asked] = driven.effects_of(we.FindCheckpoints)
        assert asked.past is not None
        driven.found(past=asked.past)
        [ready] = driven.sent(m.Ready)
        assert (ready.past, ready.generation) == (asked.past, 1)
