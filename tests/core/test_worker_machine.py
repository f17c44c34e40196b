from __future__ import annotations

import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, NodeId, RequestId, RunId
from recovery.core.policy.backoff import SHUTDOWN_GRACE_MS
from recovery.core.rules import Rules
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.main_thread import MainThread
from recovery.core.worker.stimuli import WorkerTimer
from recovery.core.worker.transitions import WorkerState
from tests.core.desk import checkpoint
from tests.core.driven_worker import DrivenWorker, plan, refused

# --- joining ------------------------------------------------------------------------------------------------------------


def test_it_dials_registers_looks_and_says_ready() -> None:
    driven = DrivenWorker()
    assert driven.handle(s.Started(RequestId("r"), None))[-1] == we.Connect()
    driven.handle(s.Connected("10.0.0.1:7"))
    [register] = driven.sent(m.Register)
    assert (register.token, register.generation, register.serves) == (None, 0, "10.0.0.1:7")
    driven.admitted()
    assert driven.effects_of(we.FindCheckpoints) == [we.FindCheckpoints(1, "job", RunId(1))]
    driven.found(checkpoint(10))
    assert [ready.held for ready in driven.sent(m.Ready)] == [(checkpoint(10),)]
    driven.receive(plan(1))
    assert driven.effects_of(we.OpenGeneration)
    driven.found()
    assert driven.effects == []


def test_a_scheduler_that_never_answers_ends_it_by_the_topology_timeout() -> None:
    driven = DrivenWorker(topology_timeout_ms=1_000)
    driven.handle(s.Started(RequestId("r"), None))
    driven.handle(s.ConnectFailed("refused", 0.0), 999)
    assert driven.effects_of(we.SetTimer) == [we.SetTimer(WorkerTimer.DIAL, 999 + 25)]
    driven.handle(s.ConnectFailed("refused", 0.0), 1_000)
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == ["SCHEDULER_UNREACHABLE"]


def test_training_goes_on_without_a_scheduler_only_with_recovery() -> None:
    for enabled, expected in ((True, []), (False, ["SCHEDULER_UNREACHABLE"])):
        driven = DrivenWorker(recovery_enabled=enabled).training()
        driven.handle(s.Disconnected("cut", 0.5), 1_000)
        assert driven.effects_of(we.Connect)
        driven.handle(s.ConnectFailed("refused", 0.5), 10**6)
        assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == expected
        assert bool(driven.effects_of(we.Interrupt)) is not enabled


def test_waits_say_what_they_wait_for_after_5_s_and_then_every_30() -> None:
    driven = DrivenWorker()
    driven.handle(s.Started(RequestId("r"), None))
    assert we.SetTimer(WorkerTimer.WAIT_NOTE, 5_000) in driven.effects
    driven.fire(WorkerTimer.WAIT_NOTE, 5_000)
    assert [said.text for said in driven.effects_of(e.Log)] == ["for the scheduler to answer, 5 s so far"]
    assert driven.effects_of(we.SetTimer) == [we.SetTimer(WorkerTimer.WAIT_NOTE, 35_000)]
    assert DrivenWorker().training().fire(WorkerTimer.WAIT_NOTE, 9_000) == []


def test_a_wait_for_a_scheduler_that_cannot_be_dialled_says_why_and_where_to_look() -> None:
    driven = DrivenWorker()
    driven.handle(s.Started(RequestId("r"), None))
    driven.handle(s.ConnectFailed("cannot connect to first:8118: refused", 0.5), 4_000)
    driven.fire(WorkerTimer.WAIT_NOTE, 5_000)
    [said] = driven.effects_of(e.Log)
    assert "5 s so far: cannot connect to first:8118: refused. Does the command run that starts" in said.text
    driven.handle(s.ConnectFailed("another token", 0.5, not_let_in=True), 5_000)
    driven.fire(WorkerTimer.WAIT_NOTE, 35_000)
    assert driven.effects_of(e.Log)[-1].text.endswith("35 s so far: another token")


# --- the connection underneath training ------------------------------------------------------------------------------------


def test_heartbeats_carry_the_step_and_note_the_progress() -> None:
    driven = DrivenWorker()
    assert driven.fire(WorkerTimer.HEARTBEAT, 0)[:-1] == []
    driven.training()
    driven.handle(s.StateRestored(Generation(1)))
    assert [loaded.generation for loaded in driven.sent(m.StateLoaded)] == [1]
    assert driven.handle(s.StateRestored(Generation(9))) == []
    driven.handle(s.StepsDone(Generation(1), 5, 1, 5))
    assert [first.step for first in driven.sent(m.FirstStep)] == [5]
    assert driven.handle(s.StepsDone(Generation(1), 6, 1, 6)) == []
    assert driven.handle(s.StepsDone(Generation(9), 6, 1, 6)) == []
    driven.handle(s.StepsDone(Generation(1), 7, 1, 7))
    driven.fire(WorkerTimer.HEARTBEAT, 4_000)
    assert [beat.step for beat in driven.sent(m.Heartbeat)] == [7]
    assert len(driven.effects_of(e.Persist)) == 1
    assert we.SetTimer(WorkerTimer.HEARTBEAT, 8_000) in driven.effects


def test_heartbeats_tell_people_the_epoch_the_end_and_the_loss() -> None:
    driven = DrivenWorker()
    driven.training()
    driven.handle(s.StepsDone(Generation(1), 7, 2, 3, total_steps=40, loss=0.5))
    driven.fire(WorkerTimer.HEARTBEAT, 4_000)
    [beat] = driven.sent(m.Heartbeat)
    assert (beat.epoch, beat.total_steps, beat.loss) == (2, 40, 0.5)


def test_silence_of_the_scheduler_is_ended_by_dialling_again() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.HeartbeatAck(sequence=1), 5_000)
    assert driven.fire(WorkerTimer.SILENCE, 15_000) == [we.SetTimer(WorkerTimer.SILENCE, 20_000)]
    driven.fire(WorkerTimer.SILENCE, 20_000)
    assert driven.effects_of(we.Disconnect)
    driven.handle(s.Disconnected("cut", 0.5))
    assert driven.fire(WorkerTimer.SILENCE, 20_001) == []


def test_what_was_not_answered_is_sent_again_after_a_reconnect() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.CheckpointPublished(RequestId("c"), checkpoint(10)))
    assert isinstance(driven.effects_of(e.Persist)[0].then[0], e.Report)
    driven.handle(s.ReportStored(RequestId("c")))
    driven.handle(s.RendezvousOpened(Generation(1), "h:1"))
    assert driven.sent(m.RendezvousOpen)
    driven.reconnect()
    driven.admitted(resumed=True, committed=10)
    assert driven.sent(m.CheckpointReport)
    assert driven.sent(m.RendezvousOpen)
    assert driven.effects_of(we.Retain) == [we.Retain(10)]
    driven.receive(m.Received(request_id=RequestId("c")))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.CheckpointReport) == []


def test_a_store_that_does_not_know_it_makes_it_start_over() -> None:
    driven = DrivenWorker().training()
    driven.reconnect()
    driven.admitted(resumed=False)
    assert driven.effects_of(we.Interrupt)


def test_what_it_said_to_another_job_is_not_said_again() -> None:
    """That lacks what it knows of that other job: a scheduler that has lost its store would begin at step 0."""
    driven = DrivenWorker().training()
    driven.receive(m.Interrupt(generation=Generation(1), reason="worker_1 lost"))
    driven.handle(s.TrainingStopped(Generation(1), 42))
    driven.found(request="f2")
    assert driven.sent(m.Ready)
    driven.reconnect()
    driven.admitted(job="another job")
    assert driven.effects_of(we.FindCheckpoints)[0].past is not None
    driven.receive(m.Interrupt(generation=Generation(1), reason="again"))
    assert driven.sent(m.Ready) == []


def test_a_pause_is_confirmed_by_an_answer_to_a_later_heartbeat() -> None:
    driven = DrivenWorker().training()
    driven.fire(WorkerTimer.HEARTBEAT, 1_000)
    driven.handle(s.PauseNoticed(40_000), 41_000)
    [beat] = driven.sent(m.Heartbeat)
    assert driven.receive(m.HeartbeatAck(sequence=beat.sequence - 1)) == []
    driven.reconnect()
    driven.admitted(resumed=True)
    [beat] = driven.sent(m.Heartbeat)
    assert driven.receive(m.HeartbeatAck(sequence=beat.sequence)) == [we.ConfirmRank()]
    assert driven.receive(m.HeartbeatAck(sequence=beat.sequence)) == []
    driven.handle(s.Disconnected("cut", 0.5))
    assert driven.handle(s.PauseNoticed(40_000)) == driven.effects_of(e.Log)


# --- generations ----------------------------------------------------------------------------------------------------------


def test_an_interrupt_stops_the_main_thread_and_the_next_plan_opens_it_again() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.Interrupt(generation=Generation(1), reason="worker_1 lost"), 100)
    assert driven.effects_of(we.Interrupt) == [we.Interrupt(Generation(1), "worker_1 lost")]
    assert we.SetTimer(WorkerTimer.ABORT, 10_100) in driven.effects
    assert driven.receive(m.Interrupt(generation=Generation(1), reason="again")) == []
    driven.handle(s.TrainingStopped(Generation(1), 42))
    assert driven.effects_of(we.FindCheckpoints)
    assert driven.receive(m.Interrupt(generation=Generation(1), reason="again")) == []
    driven.found()
    assert [ready.step for ready in driven.sent(m.Ready)] == [42]
    driven.receive(m.Interrupt(generation=Generation(1), reason="again"))
    assert driven.sent(m.Ready)
    assert driven.fire(WorkerTimer.ABORT, 10_100) == []
    driven.receive(plan(2, 40))
    assert driven.effects_of(we.OpenGeneration)
    assert driven.receive(plan(2, 40)) == []
    assert driven.receive(m.Rendezvous(generation=Generation(2), address="h:1")) == [
        we.OpenRendezvous(Generation(2), "h:1")
    ]
    assert driven.receive(m.Committed(run=RunId(1), step=40)) == [we.Retain(40)]
    driven.reconnect()


def test_a_main_thread_that_does_not_come_back_is_replaced() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.Interrupt(generation=Generation(1), reason="x"), 0)
    driven.fire(WorkerTimer.ABORT, 10_000)
    assert driven.effects_of(we.ReplaceProcess)


def test_a_missed_interrupt_is_made_good_by_the_next_plan() -> None:
    driven = DrivenWorker().training()
    driven.receive(plan(2))
    assert driven.effects_of(we.Interrupt)
    assert not driven.effects_of(we.OpenGeneration)
    driven.handle(s.TrainingStopped(Generation(1), 5))
    assert driven.effects_of(we.OpenGeneration) == [we.OpenGeneration(plan(2))]


def test_a_broken_collective_is_reported_before_anybody_asks() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.TrainingStopped(Generation(1), 5, "reset by peer"))
    assert [failed.reason for failed in driven.sent(m.CollectiveFailed)] == ["reset by peer"]
    assert driven.effects_of(we.FindCheckpoints)
    driven = DrivenWorker().training()
    driven.handle(s.DataPlaneBroke(Generation(1), 5, "reset"))
    assert driven.sent(m.CollectiveFailed)
    assert not driven.effects_of(we.FindCheckpoints)


def test_who_has_stopped_by_a_broken_collective_hears_that_its_generation_is_over() -> None:
    """A program that cannot be entered again is replaced only then."""
    driven = DrivenWorker().training()
    driven.handle(s.TrainingStopped(Generation(1), 5, "reset by peer"))
    assert driven.receive(m.Interrupt(generation=Generation(1), reason="worker_1 lost")) == [
        we.Interrupt(Generation(1), "worker_1 lost")
    ]
    driven.found()
    driven.receive(plan(2, 0))
    assert driven.receive(m.Interrupt(generation=Generation(1), reason="late")) == []


def test_a_rejected_checkpoint_is_a_request() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.CheckpointRejected(RequestId("b"), Generation(1), 40, "p", "sha256"))
    assert [bad.step for bad in driven.sent(m.CheckpointInvalid)] == [40]
    driven.receive(m.Received(request_id=RequestId("b")))
    assert driven.receive(m.Received(request_id=RequestId("b"))) == []


# --- leaving --------------------------------------------------------------------------------------------------------------


def test_done_is_sent_again_until_the_job_has_ended() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.TrainingDone(RequestId("d"), Generation(1), 100))
    driven.receive(m.Received(request_id=RequestId("d")))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.Done)
    driven.receive(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all"))
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == [""]
    assert driven.receive(plan(2)) == []
    assert driven.handle(s.TrainingStopped(Generation(1), 100)) == []
    assert driven.handle(s.Disconnected("closed", 0.5), 1_000) == [we.Connect()]


def test_a_script_that_goes_on_after_a_finished_job_is_left_alone() -> None:
    """Its scheduler ends before it: that is no reason to end it, and nobody is there to be dialled."""
    driven = DrivenWorker().training()
    driven.handle(s.TrainingDone(RequestId("d"), Generation(1), 100))
    driven.receive(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all"))
    driven.handle(s.Disconnected("closed", 0.5), 1_000)
    assert [type(one) for one in driven.handle(s.ConnectFailed("gone", 0.5), 1_100)] == [we.SetTimer]

    assert driven.handle(s.ConnectFailed("gone", 0.5), 1_000 + SHUTDOWN_GRACE_MS) == []


def test_a_done_that_was_interrupted_is_forgotten() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.TrainingDone(RequestId("d"), Generation(1), 100))
    driven.receive(m.Interrupt(generation=Generation(1), reason="x"))
    driven.handle(s.TrainingStopped(Generation(1), 100))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.Done) == []


def test_a_failed_job_ends_the_process_with_its_reason() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.JobEnded(outcome=m.JobOutcome.JOB_FAILED, reason="worker_1 lost"))
    assert [(exit_.code, exit_.reason) for exit_ in driven.effects_of(e.Exit)] == [
        ("JOB_FAILED", "worker_1 lost")
    ]
    assert driven.effects_of(we.Interrupt)


@pytest.mark.parametrize("answered", [True, False])
def test_an_exception_of_the_users_is_reported_before_the_process_ends(answered: bool) -> None:
    driven = DrivenWorker().training()
    driven.handle(s.TrainingRaised(RequestId("x"), Generation(1), 5, "ValueError: x", "Traceback"))
    assert [failure.error for failure in driven.sent(m.Failure)] == ["ValueError: x"]
    if answered:
        driven.receive(m.Received(request_id=RequestId("x")))
    else:
        driven.fire(WorkerTimer.SHUTDOWN, SHUTDOWN_GRACE_MS)
    not_told = [log.text for log in driven.effects_of(e.Log) if log.event == "last_message_not_taken"]
    assert [text.endswith("(TRAINING_RAISED: ValueError: x)") for text in not_told] == [True] * (not answered)
    assert [(exit_.code, exit_.reason) for exit_ in driven.effects_of(e.Exit)] == [
        ("TRAINING_RAISED", "ValueError: x")
    ]
    driven.receive(refused("REJOIN_WINDOW", 10))
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == ["TRAINING_RAISED"]


def test_a_process_whose_last_message_was_taken_ends_once_however_long_its_end_takes() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.TrainingRaised(RequestId("x"), Generation(1), 5, "ValueError: x", "Traceback"))
    driven.receive(m.Received(request_id=RequestId("x")))
    driven.fire(WorkerTimer.SHUTDOWN, SHUTDOWN_GRACE_MS)
    assert driven.effects == []


def test_a_process_that_leaves_while_nobody_answers_says_that_its_reason_is_not_known() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.Disconnected("closed", 0.5), 1_000)
    driven.handle(s.TrainingRaised(RequestId("x"), Generation(1), 5, "ValueError: x", "Traceback"), 1_000)
    driven.handle(s.ConnectFailed("gone", 0.5), 1_000 + 2 * SHUTDOWN_GRACE_MS)
    assert [log.event for log in driven.effects_of(e.Log)][-1] == "last_message_not_taken"
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == ["TRAINING_RAISED"]


def test_a_stop_before_the_admission_is_immediate_and_later_leaves_in_order() -> None:
    driven = DrivenWorker().registering()
    driven.handle(s.StopAsked(RequestId("s"), "SIGTERM"))
    assert driven.effects == [e.Exit("STOPPED", "SIGTERM")]
    driven = DrivenWorker().training()
    driven.handle(s.StopAsked(RequestId("s"), "SIGTERM"))
    assert driven.sent(m.Leave)
    assert driven.machine.state is WorkerState.LEAVING
    assert we.SetTimer(WorkerTimer.SHUTDOWN, SHUTDOWN_GRACE_MS) in driven.effects


def test_one_more_reason_to_leave_puts_off_no_end() -> None:
    """A script raises and is asked to end while it leaves: where nobody takes its last message, each signal gave it the whole time again."""
    driven = DrivenWorker().training()
    driven.handle(s.TrainingRaised(RequestId("x"), Generation(1), 5, "ValueError: x", "Traceback"))
    assert we.SetTimer(WorkerTimer.SHUTDOWN, SHUTDOWN_GRACE_MS) in driven.effects
    for number in range(2):
        stop = s.StopAsked(RequestId(f"s{number}"), "SIGTERM")
        driven.handle(stop, SHUTDOWN_GRACE_MS - 2 + number)
        assert driven.sent(m.Leave)
        assert driven.effects_of(we.SetTimer) == []
    driven.fire(WorkerTimer.SHUTDOWN, SHUTDOWN_GRACE_MS)
    assert [(exit_.code, exit_.reason) for exit_ in driven.effects_of(e.Exit)] == [("STOPPED", "SIGTERM")]


@pytest.mark.parametrize("refused_before", [False, True])
def test_a_connection_that_both_sides_have_closed_is_dialled_once(refused_before: bool) -> None:
    driven = DrivenWorker().registering()
    if refused_before:
        driven.receive(refused("REJOIN_WINDOW", 10_000))
    driven.handle(s.Disconnected("cut", 0.5))
    assert bool(driven.effects_of(we.Connect)) is not refused_before
    assert driven.handle(s.Disconnected("closed by this side", 0.5)) == []


def test_a_plan_that_is_given_to_a_main_thread_in_training_is_a_fault_and_not_nothing() -> None:
    main_thread = MainThread(NodeId("worker_0"), Rules(worker_count=1))
    main_thread.admit()
    main_thread.open(plan(1))
    with pytest.raises(AssertionError, match="a worker that is training knows no move for: planned"):
        main_thread.open(plan(2))
