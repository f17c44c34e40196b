"""What two hosts of a job run is compared as they come: the first difference is said once, and refuses nobody."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.programs import Program, difference
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from tests.core.desk import Desk, Worker
from tests.core.driven_worker import DrivenWorker

ONE = Program(script="train.py", digest="a" * 64, arguments=("--lr", "0.1"), settings=("MS_ROLLBACK=live",))
OTHER = msgspec.structs.replace(ONE, arguments=("--lr", "0.2"))
SAID = "the script's arguments behind --lr are 0.2 on B and 0.1 on A"


def of(**changes: object) -> Program:
    return msgspec.structs.replace(ONE, **changes)


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (ONE, ONE, ""),
        (OTHER, ONE, SAID),
        (
            of(digest="b" * 64),
            ONE,
            "the script is train.py (bbbbbbbbbbbb) on B and train.py (aaaaaaaaaaaa) on A",
        ),
        (of(digest=""), ONE, "the script is no file on B and train.py (aaaaaaaaaaaa) on A"),
        (of(script="/else/train.py"), ONE, ""),
        (of(arguments=("--lr",)), ONE, "the script's arguments behind --lr are no more on B and 0.1 on A"),
        (of(arguments=()), ONE, "the script's arguments are no more on B and --lr on A"),
        (
            of(settings=("MS_ROLLBACK=checkpoint",)),
            ONE,
            "MS_ROLLBACK=checkpoint on B and MS_ROLLBACK=live on A",
        ),
    ],
)
def test_the_first_difference_is_in_words(mine: Program, theirs: Program, said: str) -> None:
    assert difference(mine, theirs, "B", "A") == said


@pytest.mark.parametrize(
    "of_a_host",
    [
        ("--node-rank=1",),
        ("--node_rank", "1"),
        ("--log-dir", "/logs/b"),
        ("--rank", "1", "--master_port=7"),
        ("--local_rank",),
    ],
)
def test_options_of_a_host_are_its_own(of_a_host: tuple[str, ...]) -> None:
    assert difference(of(arguments=(*of_a_host, *ONE.arguments)), ONE, "B", "A") == ""


# --- at the scheduler -------------------------------------------------------------------------------------------------------


def joined(desk: Desk, name: str, host: str, program: Program | None) -> str:
    answer = Worker(desk, name, host=host, program=program).register()
    assert isinstance(answer, m.Admitted)
    return answer.differs


def differences(desk: Desk) -> list[tuple[str | None, str]]:
    found = [event for event in desk.events if event.kind is EventKind.PROGRAM_DIFFERS]
    return [(event.node_id, event.reason) for event in found]


def test_another_host_with_another_learning_rate_is_told_so_once() -> None:
    desk = Desk(Rules(worker_count=6))
    assert joined(desk, "w0", "A", ONE) == ""
    assert joined(desk, "w1", "A", OTHER) == "", "what one host starts is its own"
    assert joined(desk, "w2", "C", None) == "", "a release before this one"
    assert joined(desk, "w3", "B", OTHER) == SAID
    assert joined(desk, "w4", "B", OTHER) == ""
    assert joined(desk, "w5", "D", ONE) == ""
    assert differences(desk) == [("w3", SAID)]


def test_hosts_that_run_the_same_say_nothing() -> None:
    desk = Desk(Rules(worker_count=2))
    assert joined(desk, "w0", "A", ONE) == joined(desk, "w1", "B", ONE) == ""
    assert differences(desk) == []


def test_a_worker_that_is_told_warns() -> None:
    driven = DrivenWorker().registering()
    driven.admitted(differs=SAID)
    assert e.Log("program_differs", SAID, warning=True) in driven.effects_of(e.Log)
