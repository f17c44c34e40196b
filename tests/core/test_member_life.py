from __future__ import annotations

from typing import Any, TypeVar

import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RequestId, ResumeToken, RunId
from recovery.core.rules import Rules
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import FAREWELL_MS, Identity, Main
from recovery.core.worker.machine import WorkerMachine
from tests.core.desk import checkpoint

Kind = TypeVar("Kind")


class Pocket:
    """A member machine and what it asked for last."""

    def __init__(self, **changes: Any) -> None:
        self.rules = Rules(**{"worker_count": 2, **changes})
        identity = Identity(node_id=NodeId("worker_0"), role=m.Role.WORKER, host="", pid=7)
        self.member = WorkerMachine(identity, self.rules)
        self.now = 0
        self.effects: list[we.WorkerEffect] = []

    def feel(self, stimulus: s.WorkerStimulus, at: int | None = None) -> list[we.WorkerEffect]:
        self.now = self.now if at is None else at
        self.effects = self.member.handle(stimulus, self.now)
        return self.effects

    def hear(self, message: m.FromScheduler, at: int | None = None) -> list[we.WorkerEffect]:
        return self.feel(s.SchedulerSpoke(message), at)

    def fire(self, key: str, at: int) -> list[we.WorkerEffect]:
        return self.feel(s.WorkerTimerFired(key, 0.5), at)

    def got(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def told(self, kind: type[Kind]) -> list[Kind]:
        return [tell.message for tell in self.got(we.Tell) if isinstance(tell.message, kind)]

    # --- how far it is -------------------------------------------------------------------------------------------------

    def registering(self, token: ResumeToken | None = None) -> Pocket:
        self.feel(s.Started(RequestId("r"), token))
        self.feel(s.Connected())
        return self

    def admitted(self, *, resumed: bool = False, committed: int = 0) -> Pocket:
        if self.member.admitted is None:
            self.registering()
        self.hear(
            m.Admitted(
                request_id=RequestId("r"),
                incarnation=Incarnation(1),
                token=ResumeToken("t"),
                rank=None,
                job="job",
                run=RunId(1),
                scheduler_incarnation=Incarnation(1),
                resumed=resumed,
                committed_step=committed,
            )
        )
        return self

    def training(self) -> Pocket:
        self.admitted()
        self.feel(s.CheckpointsFound(RequestId("f"), ()))
        self.hear(plan(1))
        return self

    def reconnect(self) -> None:
        self.feel(s.Disconnected("cut", 0.5))
        self.feel(s.Connected())


def plan(generation: int, step: int = 0) -> m.Rollback:
    return m.Rollback(
        generation=Generation(generation),
        run=RunId(1),
        step=step,
        epoch=0,
        step_in_epoch=0,
        rank=Rank(1),
        world_size=2,
        local_rank=0,
        local_world_size=1,
        path="",
        digest="",
        committed_step=0,
        because="",
    )


def refused(code: str, after: int | None, *, connected: bool = False) -> m.Refused:
    return m.Refused(
        request_id=RequestId("r"), code=code, reason="why", retry_after_ms=after, holder_connected=connected
    )


# --- joining ------------------------------------------------------------------------------------------------------------


def test_it_dials_registers_looks_and_says_ready() -> None:
    pocket = Pocket()
    assert pocket.feel(s.Started(RequestId("r"), None))[-1] == we.Connect()
    pocket.feel(s.Connected())
    [register] = pocket.told(m.Register)
    assert (register.token, register.generation) == (None, 0)
    pocket.admitted()
    assert pocket.got(we.FindCheckpoints) == [we.FindCheckpoints("job", RunId(1))]
    pocket.feel(s.CheckpointsFound(RequestId("f"), (checkpoint(10),)))
    assert [ready.held for ready in pocket.told(m.Ready)] == [(checkpoint(10),)]
    pocket.hear(plan(1))
    assert pocket.got(we.OpenGeneration)
    pocket.feel(s.CheckpointsFound(RequestId("late"), ()))
    assert pocket.effects == []


def test_a_scheduler_that_never_answers_ends_it_by_the_topology_timeout() -> None:
    pocket = Pocket(topology_timeout_ms=1_000)
    pocket.feel(s.Started(RequestId("r"), None))
    pocket.feel(s.ConnectFailed("refused", 0.0), 999)
    assert pocket.got(e.SetTimer) == [e.SetTimer("dial", 999 + 25)]
    pocket.feel(s.ConnectFailed("refused", 0.0), 1_000)
    assert [exit_.code for exit_ in pocket.got(e.Exit)] == ["SCHEDULER_UNREACHABLE"]


def test_training_goes_on_without_a_scheduler_only_with_recovery() -> None:
    for enabled, expected in ((True, []), (False, ["SCHEDULER_UNREACHABLE"])):
        pocket = Pocket(recovery_enabled=enabled).training()
        pocket.feel(s.Disconnected("cut", 0.5), 1_000)
        assert pocket.got(we.Connect)
        pocket.feel(s.ConnectFailed("refused", 0.5), 10**6)
        assert [exit_.code for exit_ in pocket.got(e.Exit)] == expected
        assert bool(pocket.got(we.Interrupt)) is not enabled


def test_waits_say_what_they_wait_for_after_5_s_and_then_every_30() -> None:
    pocket = Pocket()
    pocket.feel(s.Started(RequestId("r"), None))
    assert e.SetTimer("wait", 5_000) in pocket.effects
    pocket.fire("wait", 5_000)
    assert [said.text for said in pocket.got(e.Say)] == ["waiting for the scheduler to answer, 5 s so far"]
    assert pocket.got(e.SetTimer) == [e.SetTimer("wait", 35_000)]
    assert Pocket().training().fire("wait", 9_000) == []


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_a_refused_worker_says_so_once_and_asks_again_at_the_exact_time() -> None:
    pocket = Pocket().registering()
    pocket.hear(refused("REJOIN_WINDOW", 17_600), 100)
    assert e.SetTimer("dial", 17_700) in pocket.effects
    assert [said.event for said in pocket.got(e.Say)] == ["refused"]
    assert pocket.feel(s.Disconnected("refused", 0.5)) == []
    assert pocket.fire("dial", 17_700) == [we.Connect()]
    pocket.feel(s.Connected())
    pocket.hear(refused("REJOIN_WINDOW", 5))
    assert pocket.got(e.Say) == []
    assert pocket.fire("dial", 17_705) == [
        we.Disconnect()
    ]  # still connected: the end of that connection dials
    assert pocket.feel(s.Disconnected("by this side", 0.5)) == [we.Connect()]


@pytest.mark.parametrize(("code", "after"), [("WORLD_FULL", None), ("REJOIN_WINDOW", 10)])
def test_what_waiting_cannot_change_or_may_not_wait_ends_at_once(code: str, after: int | None) -> None:
    pocket = Pocket(rejoin_wait=False).registering()
    pocket.hear(refused(code, after))
    assert [exit_.code for exit_ in pocket.got(e.Exit)] == [code]


def test_a_holder_heard_within_a_whole_lease_lives() -> None:
    pocket = Pocket(lease_ms=3_000).registering()
    pocket.hear(refused("NODE_ALIVE", 1_000, connected=True), 0)
    pocket.hear(refused("NODE_ALIVE", 1_000, connected=False), 3_000)  # perhaps it comes back: counts anew
    pocket.hear(refused("NODE_ALIVE", 1_000, connected=True), 6_500)
    assert not pocket.got(e.Exit)
    pocket.hear(refused("NODE_ALIVE", 1_000, connected=True), 6_501)
    assert [exit_.code for exit_ in pocket.got(e.Exit)] == ["NODE_ALIVE"]


def test_a_foreign_token_is_dropped_and_it_registers_anew() -> None:
    pocket = Pocket().registering(ResumeToken("old"))
    pocket.hear(refused("UNKNOWN_TOKEN", 0))
    pocket.reconnect()
    assert [register.token for register in pocket.told(m.Register)] == [None]


# --- the connection underneath training ------------------------------------------------------------------------------------


def test_heartbeats_tell_the_step_and_note_the_progress() -> None:
    pocket = Pocket()
    assert pocket.fire("heartbeat", 0)[:-1] == []
    pocket.training()
    pocket.feel(s.StateRestored(Generation(1)))
    assert [loaded.generation for loaded in pocket.told(m.StateLoaded)] == [1]
    assert pocket.feel(s.StateRestored(Generation(9))) == []
    pocket.feel(s.StepsDone(Generation(1), 5, 1, 5))
    assert [first.step for first in pocket.told(m.FirstStep)] == [5]
    assert pocket.feel(s.StepsDone(Generation(1), 6, 1, 6)) == []
    assert pocket.feel(s.StepsDone(Generation(9), 6, 1, 6)) == []
    pocket.feel(s.StepsDone(Generation(1), 7, 1, 7))
    pocket.fire("heartbeat", 4_000)
    assert [beat.step for beat in pocket.told(m.Heartbeat)] == [7]
    assert len(pocket.got(e.Persist)) == 1
    assert e.SetTimer("heartbeat", 8_000) in pocket.effects


def test_silence_of_the_scheduler_is_ended_by_dialling_anew() -> None:
    pocket = Pocket().training()
    pocket.hear(m.HeartbeatAck(sequence=1), 5_000)
    assert pocket.fire("silence", 15_000) == [e.SetTimer("silence", 20_000)]
    pocket.fire("silence", 20_000)
    assert pocket.got(we.Disconnect)
    pocket.feel(s.Disconnected("cut", 0.5))
    assert pocket.fire("silence", 20_001) == []


def test_what_was_not_answered_is_told_again_after_a_reconnect() -> None:
    pocket = Pocket().training()
    pocket.feel(s.CheckpointPublished(RequestId("c"), checkpoint(10)))
    assert isinstance(pocket.got(e.Persist)[0].then[0], e.Report)
    pocket.feel(s.RendezvousOpened(Generation(1), "h:1"))
    assert pocket.told(m.RendezvousOpen)
    pocket.reconnect()
    pocket.admitted(resumed=True, committed=10)
    assert pocket.told(m.CheckpointReport)
    assert pocket.told(m.RendezvousOpen)
    assert pocket.got(we.Retain) == [we.Retain(10)]
    pocket.hear(m.Received(request_id=RequestId("c")))
    pocket.reconnect()
    pocket.admitted(resumed=True)
    assert pocket.told(m.CheckpointReport) == []


def test_a_store_that_does_not_know_it_makes_it_start_over() -> None:
    pocket = Pocket().training()
    pocket.reconnect()
    pocket.admitted(resumed=False)
    assert pocket.got(we.Interrupt)


def test_a_pause_is_confirmed_by_an_answer_to_a_later_heartbeat() -> None:
    pocket = Pocket().training()
    pocket.fire("heartbeat", 1_000)
    pocket.feel(s.PauseNoticed(40_000), 41_000)
    [beat] = pocket.told(m.Heartbeat)
    assert pocket.hear(m.HeartbeatAck(sequence=beat.sequence - 1)) == []
    pocket.reconnect()
    pocket.admitted(resumed=True)
    [beat] = pocket.told(m.Heartbeat)
    assert pocket.hear(m.HeartbeatAck(sequence=beat.sequence)) == [we.Confirmed()]
    assert pocket.hear(m.HeartbeatAck(sequence=beat.sequence)) == []
    pocket.feel(s.Disconnected("cut", 0.5))
    assert pocket.feel(s.PauseNoticed(40_000)) == pocket.got(e.Say)


# --- generations ----------------------------------------------------------------------------------------------------------


def test_an_interrupt_stops_the_main_thread_and_the_next_plan_opens_it_again() -> None:
    pocket = Pocket().training()
    pocket.hear(m.Interrupt(generation=Generation(1), reason="worker_1 lost"), 100)
    assert pocket.got(we.Interrupt) == [we.Interrupt(Generation(1), "worker_1 lost")]
    assert e.SetTimer("abort", 10_100) in pocket.effects
    assert pocket.hear(m.Interrupt(generation=Generation(1), reason="again")) == []
    pocket.feel(s.TrainingStopped(Generation(1), 42))
    assert pocket.got(we.FindCheckpoints)
    assert pocket.hear(m.Interrupt(generation=Generation(1), reason="again")) == []
    pocket.feel(s.CheckpointsFound(RequestId("f2"), ()))
    assert [ready.step for ready in pocket.told(m.Ready)] == [42]
    pocket.hear(m.Interrupt(generation=Generation(1), reason="again"))
    assert pocket.told(m.Ready)
    assert pocket.fire("abort", 10_100) == []
    pocket.hear(plan(2, 40))
    assert pocket.got(we.OpenGeneration)
    assert pocket.hear(plan(2, 40)) == []
    assert pocket.hear(m.Rendezvous(generation=Generation(2), address="h:1")) == [
        we.OpenRendezvous(Generation(2), "h:1")
    ]
    assert pocket.hear(m.Committed(run=RunId(1), step=40)) == [we.Retain(40)]
    pocket.reconnect()


def test_a_main_thread_that_does_not_come_back_is_replaced() -> None:
    pocket = Pocket().training()
    pocket.hear(m.Interrupt(generation=Generation(1), reason="x"), 0)
    pocket.fire("abort", 10_000)
    assert pocket.got(we.ReplaceProcess)


def test_a_missed_interrupt_is_made_good_by_the_next_plan() -> None:
    pocket = Pocket().training()
    pocket.hear(plan(2))
    assert pocket.got(we.Interrupt)
    assert not pocket.got(we.OpenGeneration)
    pocket.feel(s.TrainingStopped(Generation(1), 5))
    assert pocket.got(we.OpenGeneration) == [we.OpenGeneration(plan(2))]


def test_a_broken_collective_is_told_before_anybody_asks() -> None:
    pocket = Pocket().training()
    pocket.feel(s.TrainingStopped(Generation(1), 5, "reset by peer"))
    assert [failed.reason for failed in pocket.told(m.CollectiveFailed)] == ["reset by peer"]
    assert pocket.got(we.FindCheckpoints)
    pocket = Pocket().training()
    pocket.feel(s.DataPlaneBroke(Generation(1), 5, "reset"))
    assert pocket.told(m.CollectiveFailed)
    assert not pocket.got(we.FindCheckpoints)


def test_a_rejected_checkpoint_is_a_request() -> None:
    pocket = Pocket().training()
    pocket.feel(s.CheckpointRejected(RequestId("b"), Generation(1), 40, "p", "sha256"))
    assert [bad.step for bad in pocket.told(m.CheckpointInvalid)] == [40]
    pocket.hear(m.Received(request_id=RequestId("b")))
    assert pocket.hear(m.Received(request_id=RequestId("b"))) == []


# --- leaving --------------------------------------------------------------------------------------------------------------


def test_done_is_told_again_until_the_job_has_ended() -> None:
    pocket = Pocket().training()
    pocket.feel(s.TrainingDone(RequestId("d"), Generation(1), 100))
    pocket.hear(m.Received(request_id=RequestId("d")))
    pocket.reconnect()
    pocket.admitted(resumed=True)
    assert pocket.told(m.Done)
    pocket.hear(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all"))
    assert [exit_.code for exit_ in pocket.got(e.Exit)] == [""]
    assert pocket.hear(plan(2)) == []
    assert pocket.feel(s.TrainingStopped(Generation(1), 100)) == []
    assert pocket.feel(s.Disconnected("hung up", 0.5), 1_000) == [we.Connect()]
    pocket.feel(s.ConnectFailed("gone", 0.5), 1_000 + FAREWELL_MS)
    assert pocket.got(e.Exit)


def test_a_done_that_was_interrupted_is_forgotten() -> None:
    pocket = Pocket().training()
    pocket.feel(s.TrainingDone(RequestId("d"), Generation(1), 100))
    pocket.hear(m.Interrupt(generation=Generation(1), reason="x"))
    pocket.feel(s.TrainingStopped(Generation(1), 100))
    pocket.reconnect()
    pocket.admitted(resumed=True)
    assert pocket.told(m.Done) == []


def test_a_failed_job_ends_the_process_with_its_reason() -> None:
    pocket = Pocket().training()
    pocket.hear(m.JobEnded(outcome=m.JobOutcome.JOB_FAILED, reason="worker_1 lost"))
    assert [(exit_.code, exit_.reason) for exit_ in pocket.got(e.Exit)] == [("JOB_FAILED", "worker_1 lost")]
    assert pocket.got(we.Interrupt)


@pytest.mark.parametrize("answered", [True, False])
def test_an_exception_of_the_users_is_told_before_the_process_ends(answered: bool) -> None:
    pocket = Pocket().training()
    pocket.feel(s.TrainingRaised(RequestId("x"), Generation(1), 5, "ValueError: x", "Traceback"))
    assert [failure.error for failure in pocket.told(m.Failure)] == ["ValueError: x"]
    if answered:
        pocket.hear(m.Received(request_id=RequestId("x")))
    else:
        pocket.fire("farewell", FAREWELL_MS)
    assert [(exit_.code, exit_.reason) for exit_ in pocket.got(e.Exit)] == [
        ("TRAINING_RAISED", "ValueError: x")
    ]
    pocket.hear(refused("REJOIN_WINDOW", 10))
    assert [exit_.code for exit_ in pocket.got(e.Exit)] == ["TRAINING_RAISED"]


def test_a_stop_before_the_admission_is_immediate_and_later_leaves_in_order() -> None:
    pocket = Pocket().registering()
    pocket.feel(s.StopAsked(RequestId("s"), "SIGTERM"))
    assert pocket.effects == [e.Exit("STOPPED", "SIGTERM")]
    pocket = Pocket().training()
    pocket.feel(s.StopAsked(RequestId("s"), "SIGTERM"))
    assert pocket.told(m.Leave)
    assert pocket.member.main is Main.LEAVING
    assert e.SetTimer("farewell", FAREWELL_MS) in pocket.effects
