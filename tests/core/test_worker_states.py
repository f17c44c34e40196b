"""The worker's two state tables, walked whole; and the machine, given every stimulus in every state."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.barrier_messages import JobSaved
from recovery.core.ids import Generation, Incarnation, RequestId, ResumeToken, RunId
from recovery.core.worker import stimuli as s
from recovery.core.worker.stimuli import WorkerTimer
from recovery.core.worker.transitions import (
    CONNECTION_MOVES,
    CONNECTION_STAYS,
    WORKER_MOVES,
    WORKER_STAYS,
    ConnectionFact,
    ConnectionState,
    WorkerFact,
    WorkerState,
    next_connection_state,
    next_worker_state,
)
from tests.core.desk import checkpoint
from tests.core.driven_worker import DrivenWorker, plan, refused

ONE = Generation(1)


# --- the tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "fact"), list(itertools.product(WorkerState, WorkerFact)))
def test_every_state_of_a_worker_answers_every_fact(state: WorkerState, fact: WorkerFact) -> None:
    if fact not in WORKER_MOVES[state] and fact not in WORKER_STAYS[state]:
        with pytest.raises(AssertionError, match=f"a worker that is {state.value} knows no move for"):
            next_worker_state(state, fact)
        return
    after = next_worker_state(state, fact)
    assert after is WORKER_MOVES[state].get(fact, state)
    if fact is WorkerFact.ENDED:
        assert after is WorkerState.LEAVING, "whatever it does, it can be ended"
    if state is WorkerState.LEAVING:
        assert after is WorkerState.LEAVING, "nobody comes back"
    if state is not WorkerState.OUTSIDE:
        assert after is not WorkerState.OUTSIDE, "who was admitted once is a member"


@pytest.mark.parametrize(("state", "fact"), list(itertools.product(ConnectionState, ConnectionFact)))
def test_every_state_of_the_connection_answers_every_fact(
    state: ConnectionState, fact: ConnectionFact
) -> None:
    if fact not in CONNECTION_MOVES[state] and fact not in CONNECTION_STAYS[state]:
        with pytest.raises(AssertionError, match=f"a connection that is {state.value} knows no move for"):
            next_connection_state(state, fact)
        return
    after = next_connection_state(state, fact)
    assert after is CONNECTION_MOVES[state].get(fact, state)
    open_after = after not in (ConnectionState.DISCONNECTED, ConnectionState.WAITING)
    if fact is ConnectionFact.CLOSED:
        assert not open_after, "what is closed is not open"
    if open_after and state in (ConnectionState.DISCONNECTED, ConnectionState.WAITING):
        assert fact is ConnectionFact.OPENED, "only a dial opens a connection"
    if after is ConnectionState.ADMITTED and state is not ConnectionState.ADMITTED:
        assert fact is ConnectionFact.ADMITTED, "only the scheduler admits"


@pytest.mark.parametrize(
    ("moves", "stays"), [(WORKER_MOVES, WORKER_STAYS), (CONNECTION_MOVES, CONNECTION_STAYS)]
)
def test_every_row_moves_somewhere_else_and_every_state_is_reached(
    moves: dict[object, dict[object, object]], stays: dict[object, frozenset[object]]
) -> None:
    assert stays.keys() == moves.keys()
    first = next(iter(moves))
    reached = {after for row in moves.values() for after in row.values()} | {first}
    assert reached == set(moves)
    for state, row in moves.items():
        assert state not in row.values(), "a fact that changes nothing has no row"
        assert not stays[state] & row.keys(), "a fact either moves or does not"


# --- the machine --------------------------------------------------------------------------------------------------------


def _stopping() -> DrivenWorker:
    driven = DrivenWorker().training()
    driven.receive(m.Interrupt(generation=ONE, reason="w lost"))
    return driven


def _leaving() -> DrivenWorker:
    driven = DrivenWorker().training()
    driven.handle(s.StopAsked(RequestId("s"), "SIGTERM"))
    return driven


WORKERS: dict[WorkerState, Callable[[], DrivenWorker]] = {
    WorkerState.OUTSIDE: lambda: DrivenWorker().registering(),
    WorkerState.IDLE: lambda: DrivenWorker().admitted(),
    WorkerState.TRAINING: lambda: DrivenWorker().training(),
    WorkerState.STOPPING: _stopping,
    WorkerState.LEAVING: _leaving,
}
"""One worker in each state."""

_SCHEDULER_SAYS: list[m.FromScheduler] = [
    m.Admitted(
        request_id=RequestId("r"),
        incarnation=Incarnation(1),
        token=ResumeToken("u"),
        rank=None,
        job="job",
        run=RunId(1),
        scheduler_incarnation=Incarnation(1),
        resumed=False,
    ),
    refused("REJOIN_WINDOW", 10),
    refused("WORLD_FULL", None),
    m.HeartbeatAck(sequence=1),
    m.Received(request_id=RequestId("s")),
    m.Interrupt(generation=ONE, reason="w lost"),
    plan(2),
    m.Rendezvous(generation=ONE, address="h:1"),
    m.Committed(run=RunId(1), step=10),
    m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all"),
    JobSaved(request_id=RequestId("j"), step=10),
]
_ALWAYS: list[s.WorkerStimulus] = [
    s.Connected(),
    s.ConnectFailed("refused", 0.5),
    s.Disconnected("cut", 0.5),
    s.StopAsked(RequestId("x"), "SIGTERM"),
    s.PauseNoticed(40_000),
    s.StoreRefused(RequestId("l"), "STORE_VERSION", "newer"),
    s.CheckpointsFound(RequestId("f"), 1, (checkpoint(10),)),
    s.StepsDone(ONE, 5, 1, 5),
    s.StateRestored(ONE),
    *(s.TimerFired(timer, 0.5) for timer in WorkerTimer),
    *(s.MessageReceived(message) for message in _SCHEDULER_SAYS),
]
"""What can happen to a worker whatever it does."""
_OF_A_GENERATION: list[s.WorkerStimulus] = [
    s.CheckpointPublished(RequestId("c"), checkpoint(10)),
    s.ReportStored(RequestId("c")),
    s.CheckpointRejected(RequestId("b"), ONE, 10, "p", "sha256"),
    s.RendezvousOpened(ONE, "h:1"),
    s.TrainingStopped(ONE, 5),
    s.DataPlaneBroke(ONE, 5, "reset"),
    s.TrainingRaised(RequestId("e"), ONE, 5, "ValueError: x", ""),
    s.TrainingDone(RequestId("d"), ONE, 100),
]
"""What only a main thread in a training function does. It may still do it while the process leaves."""
_IN_GENERATION = (WorkerState.TRAINING, WorkerState.STOPPING, WorkerState.LEAVING)


def _happens_to(state: WorkerState) -> list[s.WorkerStimulus]:
    happens = [*_ALWAYS, *(_OF_A_GENERATION if state in _IN_GENERATION else ())]
    if state is WorkerState.OUTSIDE:
        # The scheduler plans for members only.
        happens.remove(s.MessageReceived(plan(2)))
    return happens


@pytest.mark.parametrize("state", WorkerState)
def test_whatever_happens_to_a_worker_moves_it_by_the_table_and_keeps_what_is_always_true(
    state: WorkerState,
) -> None:
    seen = {state}
    for first, second in itertools.product(_happens_to(state), _happens_to(WorkerState.OUTSIDE)):
        driven = WORKERS[state]()
        assert driven.machine.state is state
        _handle(driven, first)
        between = driven.machine.state
        _handle(driven, second)
        for before, after in ((state, between), (between, driven.machine.state)):
            assert after is before or after in WORKER_MOVES[before].values() or _twice(before, after)
        seen |= {between, driven.machine.state}
    assert seen >= set(WORKER_MOVES[state].values())


def _handle(driven: DrivenWorker, stimulus: s.WorkerStimulus) -> None:
    """Let it happen, if it can: a dial succeeds where nothing is connected, and messages come where something is."""
    needs = {s.Connected: False, s.MessageReceived: True}.get(type(stimulus), driven.is_connected)
    if needs is driven.is_connected:
        driven.handle(stimulus)


def _twice(before: WorkerState, after: WorkerState) -> bool:
    """A plan that waited for the stop: two moves by one stimulus."""
    return before is WorkerState.STOPPING and after is WorkerState.TRAINING


def test_a_leaving_worker_ends_by_its_own_reason_whatever_comes() -> None:
    for stimulus in _ALWAYS:
        driven = _leaving()
        _handle(driven, stimulus)
        if isinstance(stimulus, s.MessageReceived):
            for exit_ in driven.effects_of(e.Exit):
                assert (exit_.code, exit_.reason) == ("STOPPED", "SIGTERM")
