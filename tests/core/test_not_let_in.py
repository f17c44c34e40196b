"""A scheduler that answers and does not take a process for one of its job: that is no network trouble, and is not waited out for ever."""

from __future__ import annotations

from recovery.core import effects as e
from recovery.core.ids import RequestId
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from tests.core.driven_worker import DrivenWorker

REASON = "the scheduler does not let this process in: its job token is another one"


def kept_out() -> s.ConnectFailed:
    return s.ConnectFailed(REASON, 0.5, not_let_in=True)


def codes(driven: DrivenWorker) -> list[str]:
    return [exit_.code for exit_ in driven.effects_of(e.Exit)]


def test_who_is_not_let_in_for_a_whole_lease_ends_with_a_code_of_its_own() -> None:
    driven = DrivenWorker(lease_ms=1_000)
    driven.handle(s.Started(RequestId("r"), None))
    driven.handle(kept_out(), 500)
    driven.handle(kept_out(), 1_499)
    assert codes(driven) == []
    driven.handle(kept_out(), 1_500)
    assert [(exit_.code, REASON in exit_.reason) for exit_ in driven.effects_of(e.Exit)] == [
        ("NOT_LET_IN", True)
    ]


def test_any_other_end_of_a_dial_begins_the_wait_anew() -> None:
    driven = DrivenWorker(lease_ms=1_000)
    driven.handle(s.Started(RequestId("r"), None))
    driven.handle(kept_out(), 0)
    driven.handle(s.ConnectFailed("refused", 0.5), 900)
    driven.handle(kept_out(), 1_000)
    driven.handle(kept_out(), 1_900)
    assert codes(driven) == []
    driven.handle(s.Connected(), 1_950)
    driven.handle(s.Disconnected("closed", 0.5), 1_960)
    driven.handle(kept_out(), 2_100)
    assert codes(driven) == []


def test_a_member_dials_on_while_the_scheduler_of_another_path_answers() -> None:
    driven = DrivenWorker(lease_ms=1_000).training()
    driven.handle(s.Disconnected("cut", 0.5), 1_000)
    for at in (1_100, 5_000, 50_000):
        driven.handle(kept_out(), at)
        assert codes(driven) == []
        assert driven.effects_of(we.SetTimer)
