"""Who may bring files from object storage is sent where the newest plans began: what one of them has rolled back is of no use."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.policy.rollback import is_in_lineage
from recovery.core.rules import Rules
from recovery.core.scheduler.state import STARTS_SENT
from recovery.core.worker import effects as we
from tests.core.desk import Desk, running_workers
from tests.core.driven_worker import DrivenWorker
from tests.core.pasts import began
from tests.core.standbys import RULES, lose, standby

STARTS = (began(1, 0), began(3, 110))


@pytest.mark.parametrize(
    ("generation", "step", "leads_here"),
    [(1, 110, True), (1, 111, False), (2, 120, False), (3, 120, True), (4, 120, True)],
)
def test_step_leads_here_unless_a_later_plan_began_before_it(
    generation: int, step: int, leads_here: bool
) -> None:
    assert is_in_lineage(generation, step, STARTS) is leads_here
    assert is_in_lineage(generation, step, ())


def test_process_that_comes_and_standby_that_is_asked_are_sent_them() -> None:
    desk = Desk(RULES)
    first, second = running_workers(desk)
    held = [one.save(10) for one in (first, second)]
    waits = standby(desk)
    assert waits.last(m.Admitted).began == (began(1, 0),)
    first.send(m.CollectiveFailed(generation=first.generation, step=12, reason="reset"))
    for one, file in zip((first, second), held, strict=True):
        one.ready(file)
    for one in (first, second):
        one.follow()
    expected = [(1, 0), (2, 10)]
    assert [(start.generation, start.step) for start in desk.machine.state.newest_starts] == expected
    lose(desk, second)
    assert [(start.generation, start.step) for start in waits.last(m.Offer).began] == expected


def test_of_many_plans_the_newest_are_sent() -> None:
    desk = Desk(Rules(worker_count=1))
    [worker] = running_workers(desk, "worker_0")
    for number in range(STARTS_SENT + 1):
        worker.send(m.CollectiveFailed(generation=worker.generation, step=number, reason="reset"))
        worker.ready()
        worker.follow()
    starts = desk.machine.state.newest_starts
    assert (len(starts), starts[0].generation, starts[-1].generation) == (STARTS_SENT, 3, STARTS_SENT + 2)


def test_worker_looks_for_its_files_with_what_it_was_sent() -> None:
    driven = DrivenWorker().admitted(began=STARTS)
    assert [find.began for find in driven.effects_of(we.FindCheckpoints)] == [STARTS]
