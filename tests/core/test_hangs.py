"""A main thread that hangs is replaced, but not for ever at the same step."""

from __future__ import annotations

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, RequestId, ResumeToken
from recovery.core.policy.backoff import SHUTDOWN_GRACE_MS
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.main_thread import REPLACEMENTS_MAX
from recovery.core.worker.stimuli import WorkerTimer
from tests.core.driven_worker import DrivenWorker


def _hung(before: s.Hangs, *, at: int) -> DrivenWorker:
    """A program that took over `before` has hung behind step `at`, and is not waited for any longer."""
    driven = DrivenWorker().training()
    driven.handle(s.Started(RequestId("r"), ResumeToken("t"), before))
    driven.handle(s.StepsDone(Generation(1), at, 1, at))
    driven.receive(m.Interrupt(generation=Generation(1), reason="a peer was lost"))
    driven.fire(WorkerTimer.ABORT, driven.rules.abort_timeout_ms)
    return driven


def test_the_next_program_learns_how_often_and_how_far() -> None:
    [replaced] = _hung(s.Hangs(), at=0).effects_of(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(1, 0)
    [replaced] = _hung(s.Hangs(1, 411), at=411).effects_of(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(2, 411)
    [replaced] = _hung(s.Hangs(1, 411), at=402).effects_of(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(2, 411)


def test_a_step_that_no_program_had_applied_begins_the_count_again() -> None:
    [replaced] = _hung(s.Hangs(REPLACEMENTS_MAX, 411), at=412).effects_of(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(1, 412)


def test_a_program_that_hangs_at_the_same_step_every_time_ends_by_name() -> None:
    driven = _hung(s.Hangs(REPLACEMENTS_MAX, 411), at=411)
    assert driven.effects_of(we.ReplaceProcess) == []
    [failure] = driven.sent(m.Failure)
    assert failure.step == 411
    assert "4 times in a row and never beyond step 411" in failure.error
    driven.fire(WorkerTimer.SHUTDOWN, driven.now + SHUTDOWN_GRACE_MS)
    assert [exit_.code for exit_ in driven.effects_of(e.Exit)] == ["PROCESS_HUNG"]


def test_who_replaces_itself_without_a_hang_hands_the_count_on() -> None:
    driven = DrivenWorker()
    driven.handle(s.Started(RequestId("r"), ResumeToken("t"), s.Hangs(2, 411)))
    assert driven.machine.hangs == s.Hangs(2, 411)
