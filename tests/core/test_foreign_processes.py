"""Processes of another job at a scheduler that has not planned yet: who ends, and who is only refused."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation
from recovery.core.rules import Rules
from tests.core.desk import Desk, registration


def register(**fields: object) -> m.Register:
    return registration(**{"generation": Generation(3), "job": "another", **fields})


def refused(desk: Desk, message: m.Register) -> str:
    connection = desk.connect()
    desk.say(connection, message)
    assert desk.exit is None, "the scheduler ends by a stranger"
    [answer] = [one for one in desk.tray[connection] if isinstance(one, m.Refused)]
    return answer.code


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"worker_count": 9}, "JOB_MISMATCH"), ({"protocol": 7}, "PROTOCOL_VERSION")],
)
def test_what_cannot_be_of_this_job_is_refused_alone(fields: dict[str, object], code: str) -> None:
    assert refused(Desk(Rules(worker_count=2)), register(**fields)) == code


def test_without_recovery_no_store_is_lost_and_the_process_is_refused() -> None:
    desk = Desk(Rules(worker_count=2, recovery_enabled=False))
    assert refused(desk, register(recovery_enabled=False)) == "JOB_MISMATCH"


def test_a_worker_of_the_release_before_shows_another_job_by_its_generation() -> None:
    desk = Desk(Rules(worker_count=2))
    desk.say(desk.connect(), register(job=""))
    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"


def test_a_process_that_was_never_planned_is_let_in() -> None:
    desk = Desk(Rules(worker_count=2))
    connection = desk.connect()
    desk.say(connection, register(job="", generation=Generation(0)))
    assert any(isinstance(one, m.Admitted) for one in desk.tray[connection])
