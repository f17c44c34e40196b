"""What a launcher knows of its job."""

from __future__ import annotations

import asyncio

import pytest

from recovery.core.ids import NodeId
from recovery.launch.job_view import KnownJob, KnownNode, Members


def job(*nodes: KnownNode, state: str = "running") -> KnownJob:
    return KnownJob(job="j", state=state, nodes=nodes)


def node(node_id: str, pid: int = 1, rank: int | None = None) -> KnownNode:
    return KnownNode(node_id=node_id, pid=pid, rank=rank)


class Scheduler:
    """Answers in order; the last answer stays."""

    def __init__(self, *answers: KnownJob | None) -> None:
        self.answers, self.asked = list(answers), 0

    async def known_job(self) -> KnownJob | None:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_what_is_known_is_not_asked_again() -> None:
    scheduler = Scheduler(job(node("0", 7)))
    members = Members(scheduler)

    assert asyncio.run(members.was_member("0", 7))
    assert asyncio.run(members.was_member("0", 7))
    asyncio.run(members.refresh([("0", 7)]))
    assert scheduler.asked == 1
    assert set(members.ids) == {"0"}


def test_a_process_is_known_by_its_id_and_its_process_id() -> None:
    members = Members(Scheduler(job(node("0", 7))))
    assert not asyncio.run(members.was_member("0", 8))
    assert not asyncio.run(members.was_member("1", 7))


def test_a_scheduler_that_does_not_answer_says_nothing_of_anybody() -> None:
    members = Members(Scheduler(None, job(node("0", 7)), None))
    assert asyncio.run(members.was_member("0", 7)) is None
    asyncio.run(members.refresh([("0", 7)]))
    assert asyncio.run(members.was_member("0", 7))


@pytest.mark.parametrize(
    ("nodes", "state", "is_standby", "needed"),
    [
        ([node("0", rank=0)], "running", False, True),
        ([node("0"), node("standby_0", rank=0)], "running", False, False),
        ([node("0"), node("0.2", rank=0)], "running", False, True),
        ([node("0"), node("0.2"), node("01", rank=0)], "interrupted", False, False),
        ([], "forming", False, True),
        ([], "forming", True, False),
        ([node("0")], "running", True, False),
        ([node("0", rank=3)], "running", True, True),
    ],
)
def test_a_job_needs_who_holds_a_rank(
    nodes: list[KnownNode], state: str, is_standby: bool, needed: bool
) -> None:
    assert job(*nodes, state=state).needs(NodeId("0"), is_standby=is_standby) is needed


@pytest.mark.parametrize(
    ("pid", "state", "cause", "handed_over"),
    [
        (7, "left", "rank_handed_over", True),
        (7, "left", "", False),
        (7, "lost", "rank_handed_over", False),
        (8, "left", "rank_handed_over", False),
    ],
)
def test_who_has_left_as_planned(pid: int, state: str, cause: str, handed_over: bool) -> None:
    known = job(KnownNode(node_id="0", pid=pid, state=state, cause=cause))
    assert known.has_handed_over("0", 7) is handed_over
