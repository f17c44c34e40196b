"""A process that was started for a lost rank, and cannot read its newest file: which rank it is left to."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker
from tests.core.standbys import answer, lose, row, slot, training


def test_who_reads_an_older_step_of_its_own_rank_takes_no_other_which_would_leave_that_one_to_nobody() -> (
    None
):
    """The newest file of a rank is gone. Whose place it is reads what is left, and another rank's own process comes a moment later."""
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 5, 10)
    lose(desk, first)
    lose(desk, second)
    again = Worker(desk, "worker_1.2", replaces="worker_1")
    again.register()
    answer(again, 5)
    assert (again.hears(m.Offer), again.last(m.Offer).rank) == (2, 1)
    answer(again, 5)
    assert (row(desk, "worker_1.2").rank, slot(desk, "worker_1.2")) == (1, "worker_1")
    late = Worker(desk, "worker_0.2", replaces="worker_0")
    late.register()
    answer(late, 5, 10, of="worker_0", rank=0)
    plans = [one.follow() for one in (again, late)]
    assert [(plan.rank, plan.step) for plan in plans] == [(1, 5), (0, 5)]


def test_who_has_not_said_in_time_what_it_reads_of_its_own_rank_is_asked_for_no_other() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 10)
    lose(desk, first)
    lose(desk, second)
    again = Worker(desk, "worker_1.2", replaces="worker_1")
    again.register()
    desk.at(desk.now + desk.rules.abort_timeout_ms)
    assert (again.hears(m.Offer), again.last(m.Offer).rank) == (2, 1)
    answer(again, 10)
    assert (row(desk, "worker_1.2").rank, slot(desk, "worker_1.2")) == (1, "worker_1")


def test_who_reads_an_older_step_of_its_own_rank_on_another_host_may_take_another() -> None:
    """It reads what other hosts read: nobody's last resort."""
    desk = Desk(Rules(worker_count=2))
    first, second = training(desk, 5, 10)
    lose(desk, first)
    lose(desk, second)
    again = Worker(desk, "worker_1.2", replaces="worker_1", host="10.0.0.9")
    again.register()
    answer(again, 5)
    assert again.last(m.Offer).rank == 0
