"""A fresh process in the place of another name is asked for its rank's files until it has said what it can read."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.records import JobState
from recovery.core.scheduler.effects import OfferTimer
from recovery.core.scheduler.stimuli import TimerFired
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.standbys import RULES, answer, job, lose, pass_the_window, standby, taken_over, training

ASKED_FOR_MS = RULES.abort_timeout_ms


def in_anothers_place() -> tuple[Desk, Worker, Worker]:
    """worker_0 waits for a plan; s0, which took rank 1 over, is a fresh process and has just been asked."""
    desk = Desk(RULES)
    first, waits, _ = taken_over(desk)
    lose(desk, waits)
    pass_the_window(desk, first)
    first.ready(checkpoint(20, generation=2, path="worker_0/20"))
    again = Worker(desk, "s0", standby=True)
    assert isinstance(again.register(), m.Admitted)
    assert again.hears(m.Offer) == 1
    return desk, first, again


def wait(desk: Desk, for_ms: int, *alive: Worker) -> None:
    """Let time pass, with everybody heard."""
    until_ms = desk.now + for_ms
    while desk.now < until_ms:
        desk.at(min(until_ms, desk.now + 1_000))
        for one in alive:
            one.beat()


def test_who_does_not_answer_is_asked_again_each_time_twice_as_late() -> None:
    desk, first, again = in_anothers_place()
    for asked, wait_ms in ((1, ASKED_FOR_MS), (2, 2 * ASKED_FOR_MS)):
        wait(desk, wait_ms - 1, first, again)
        assert again.hears(m.Offer) == asked
        wait(desk, 1, first, again)
        assert again.hears(m.Offer) == asked + 1

    answer(again, 20, of="s0", written_in=2)
    assert again.follow().step == 20


def test_who_has_answered_is_not_asked_again_in_the_next_wait() -> None:
    desk, first, again = in_anothers_place()
    answer(again, 20, of="s0", written_in=2)
    assert again.follow().step == 20
    lose(desk, first)
    assert job(desk).state is JobState.INTERRUPTED
    wait(desk, 3 * ASKED_FOR_MS, again)
    assert again.hears(m.Offer) == 1


def test_who_was_gone_meanwhile_is_asked_anew() -> None:
    desk, first, again = in_anothers_place()
    wait(desk, ASKED_FOR_MS, first, again)
    again.die()
    assert isinstance(again.register(), m.Admitted)
    assert again.hears(m.Offer) == 1
    wait(desk, ASKED_FOR_MS, first, again)
    assert again.hears(m.Offer) == 2


def test_a_timer_of_an_earlier_offer_means_nothing() -> None:
    desk, _, again = in_anothers_place()
    desk.handle(TimerFired(OfferTimer("worker_1")))
    assert again.hears(m.Offer) == 1

    desk = Desk(RULES)
    _, second = training(desk, 10)
    waits = standby(desk)
    lose(desk, second)
    desk.handle(TimerFired(OfferTimer("worker_1")))
    assert desk.machine.state.vacancies.offers["worker_1"].standby == waits.node_id
