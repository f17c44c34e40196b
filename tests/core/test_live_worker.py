"""Live rollback as a worker's machine sees it: what is in its memory, what it has taken, and when it may begin."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.held import LiveState
from recovery.core.ids import Generation, Rank
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from tests.core.driven_worker import DrivenWorker, plan
from tests.core.survivors import in_memory


def _interrupted(driven: DrivenWorker, generation: int = 1) -> None:
    driven.receive(m.Interrupt(generation=Generation(generation), reason="worker_1 lost"))


def _stopped(
    driven: DrivenWorker, live: LiveState | None, not_live: str = "", *, generation: int = 1
) -> None:
    """It was interrupted, and has left its training function."""
    _interrupted(driven, generation)
    driven.handle(s.TrainingStopped(Generation(generation), 25, live=live, not_live=not_live))


def _found(driven: DrivenWorker) -> m.Ready:
    """Its directories were searched: what it says that it has."""
    driven.found()
    [ready] = driven.sent(m.Ready)
    return ready


def _taking(driven: DrivenWorker, content: str = "ab") -> DrivenWorker:
    """It follows a plan to the memory of rank 0, and has taken the state."""
    _stopped(driven, None, "torn")
    _found(driven)
    driven.receive(msgspec.structs.replace(plan(2, 25), live_rank=Rank(0), live_structure="s"))
    assert driven.effects_of(we.OpenGeneration)[0].plan.live_rank == 0
    driven.handle(s.StateRestored(Generation(2), content=content))
    return driven


def test_who_was_interrupted_says_what_is_in_its_memory() -> None:
    driven = DrivenWorker().training()
    _stopped(driven, in_memory(25))
    ready = _found(driven)
    assert (ready.live, ready.not_live) == (in_memory(25), "")


def test_who_has_no_whole_state_says_why_in_as_many_words_as_a_message_takes() -> None:
    driven = DrivenWorker().training()
    _stopped(driven, None, "x" * 2_000)
    ready = _found(driven)
    assert (ready.live, ready.not_live) == (None, "x" * 1_024)


def test_who_has_not_trained_has_nothing_to_say_of_its_memory() -> None:
    ready = _found(DrivenWorker().admitted())
    assert (ready.live, ready.not_live) == (None, "")


def test_what_it_has_of_another_job_is_not_offered() -> None:
    driven = DrivenWorker().training()
    _stopped(driven, in_memory(25))
    driven.reconnect()
    # The scheduler has lost its store, and another job has begun there.
    driven.admitted(job="another")
    assert _found(driven).live is None


def test_what_it_has_is_offered_again_to_a_scheduler_that_knows_its_job() -> None:
    driven = DrivenWorker().training()
    _stopped(driven, in_memory(25))
    driven.reconnect()
    driven.admitted()
    assert _found(driven).live == in_memory(25)


def test_it_says_what_it_has_taken_and_why_it_could_give_nothing() -> None:
    driven = _taking(DrivenWorker().training())
    assert driven.sent(m.StateLoaded) == [m.StateLoaded(generation=Generation(2), step=25, content="ab")]
    fresh = DrivenWorker().training()
    fresh.handle(s.StateRestored(Generation(1), not_live="y" * 2_000))
    assert fresh.sent(m.StateLoaded) == [
        m.StateLoaded(generation=Generation(1), step=0, not_live="y" * 1_024)
    ]
    assert fresh.handle(s.StateRestored(Generation(7), content="ab")) == []


def test_it_begins_when_all_have_taken_the_same() -> None:
    driven = _taking(DrivenWorker().training())
    assert not driven.effects_of(we.BeginSteps)
    assert driven.receive(m.StateAgreed(generation=Generation(2))) == [we.BeginSteps(Generation(2))]


@pytest.mark.parametrize("generation", [1, 3])
def test_what_is_agreed_on_in_another_generation_lets_nobody_begin(generation: int) -> None:
    driven = _taking(DrivenWorker().training())
    assert driven.receive(m.StateAgreed(generation=Generation(generation))) == []


def test_who_has_left_its_generation_does_not_begin_it() -> None:
    driven = _taking(DrivenWorker().training())
    _stopped(driven, None, generation=2)
    assert driven.receive(m.StateAgreed(generation=Generation(2))) == []


def test_after_a_reconnect_it_says_again_what_it_has_taken() -> None:
    driven = _taking(DrivenWorker().training())
    said = driven.sent(m.StateLoaded)
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.StateLoaded) == said
    # So it does while it trains: a restarted scheduler compares them once more.
    driven.receive(m.StateAgreed(generation=Generation(2)))
    driven.handle(s.StepsDone(Generation(2), 26, 1, 26))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.StateLoaded) == said


def test_what_it_took_for_a_generation_that_it_has_left_is_not_said_again() -> None:
    driven = _taking(DrivenWorker().training())
    _stopped(driven, in_memory(25, generation=2), generation=2)
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.StateLoaded) == []
    _found(driven)
    driven.receive(plan(3))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.StateLoaded) == []


def test_a_state_from_a_file_is_said_once() -> None:
    driven = DrivenWorker().training()
    driven.handle(s.StateRestored(Generation(1)))
    driven.reconnect()
    driven.admitted(resumed=True)
    assert driven.sent(m.StateLoaded) == []
