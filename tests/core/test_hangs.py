"""A main thread that hangs is replaced, but not for ever at the same step."""

from __future__ import annotations

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, RequestId, ResumeToken
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.connection import FAREWELL_MS, REPLACEMENTS_MAX
from tests.core.test_member_life import Pocket


def _hung(before: s.Hangs, *, at: int) -> Pocket:
    """A program that was told `before` has hung behind step `at`, and is not waited for any longer."""
    pocket = Pocket().training()
    pocket.feel(s.Started(RequestId("r"), ResumeToken("t"), before))
    pocket.feel(s.StepsDone(Generation(1), at, 1, at))
    pocket.hear(m.Interrupt(generation=Generation(1), reason="a peer was lost"))
    pocket.fire("abort", pocket.rules.abort_timeout_ms)
    return pocket


def test_the_next_program_is_told_how_often_and_how_far() -> None:
    [replaced] = _hung(s.Hangs(), at=0).got(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(1, 0)
    [replaced] = _hung(s.Hangs(1, 411), at=411).got(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(2, 411)
    [replaced] = _hung(s.Hangs(1, 411), at=402).got(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(2, 411)


def test_a_step_that_no_program_had_applied_begins_the_count_again() -> None:
    [replaced] = _hung(s.Hangs(REPLACEMENTS_MAX, 411), at=412).got(we.ReplaceProcess)
    assert replaced.hangs == s.Hangs(1, 412)


def test_a_program_that_hangs_at_the_same_step_every_time_ends_by_name() -> None:
    pocket = _hung(s.Hangs(REPLACEMENTS_MAX, 411), at=411)
    assert pocket.got(we.ReplaceProcess) == []
    [failure] = pocket.told(m.Failure)
    assert failure.step == 411
    assert "4 times in a row and never beyond step 411" in failure.error
    pocket.fire("farewell", pocket.now + FAREWELL_MS)
    assert [exit_.code for exit_ in pocket.got(e.Exit)] == ["PROCESS_HUNG"]


def test_who_replaces_itself_without_a_hang_hands_the_count_on() -> None:
    pocket = Pocket()
    pocket.feel(s.Started(RequestId("r"), ResumeToken("t"), s.Hangs(2, 411)))
    assert pocket.member.hangs == s.Hangs(2, 411)
