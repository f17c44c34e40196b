"""What an earlier launcher has left behind, asked before the first start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from recovery.core.ids import NodeId
from recovery.launch.job_view import EarlierJob, KnownJob, KnownNode


def job(*nodes: KnownNode, state: str = "interrupted") -> KnownJob:
    return KnownJob(job="j", state=state, nodes=nodes)


def node(node_id: str, state: str, rank: int | None = None) -> KnownNode:
    return KnownNode(node_id=node_id, state=state, rank=rank)


class Scheduler:
    """Answers in order; the last answer stays."""

    def __init__(self, *answers: KnownJob | None) -> None:
        self.answers, self.asked = list(answers), 0
        self.on_question: Callable[[], None] = lambda: None

    async def known_job(self) -> KnownJob | None:
        self.asked += 1
        self.on_question()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class SilentScheduler:
    """Takes the question, and never answers."""

    async def known_job(self) -> KnownJob | None:
        await asyncio.Event().wait()
        return None


@pytest.mark.parametrize(
    ("nodes", "state", "left_behind"),
    [
        ([], "forming", None),
        ([node("1", "lost", 1)], "interrupted", None),
        ([node("0", "lost", 0)], "interrupted", "0"),
        ([node("0", "suspect", 0)], "running", "0"),
        ([node("0", "lost"), node("0.2", "lost", 0), node("0.10", "lost")], "interrupted", "0.2"),
        ([node("0", "lost"), node("0.2", "lost"), node("0.10", "lost")], "forming", "0.10"),
        ([node("0", "left", 0)], "interrupted", None),
        ([node("0", "live", 0)], "running", None),
        ([node("0", "lost"), node("0.2", "left", 0)], "interrupted", "0.2"),
        ([node("0", "lost", 0)], "finished", None),
    ],
)
def test_what_is_left_behind_of_a_place(nodes: list[KnownNode], state: str, left_behind: str | None) -> None:
    assert job(*nodes, state=state).left_behind(NodeId("0")) == left_behind


async def nothing() -> None:
    """The first start waits for nothing."""


def test_a_scheduler_that_does_not_answer_is_asked_once_where_nothing_else_is_waited_for() -> None:
    scheduler = Scheduler(None)
    earlier = EarlierJob(scheduler, meanwhile=nothing, patience_s=0)

    async def ask_twice() -> list[KnownJob | None]:
        return list(await asyncio.gather(earlier.known(), earlier.known()))

    assert asyncio.run(ask_twice()) == [None, None]
    assert scheduler.asked <= 2, (
        "for all processes together; the second time since what is waited for takes a turn"
    )


def test_a_scheduler_that_starts_here_is_waited_for() -> None:
    known = job(node("0", "lost", 0))
    scheduler = Scheduler(None, None, None, known)
    assert asyncio.run(EarlierJob(scheduler, meanwhile=nothing, patience_s=10).known()) == known


def test_it_is_asked_until_the_first_start_need_not_wait_for_anything_else() -> None:
    async def ask() -> tuple[KnownJob | None, int]:
        template, scheduler = asyncio.Event(), Scheduler(None)

        async def made() -> None:
            await template.wait()

        scheduler.on_question = lambda: template.set() if scheduler.asked == 5 else None
        return await EarlierJob(scheduler, meanwhile=made, patience_s=0).known(), scheduler.asked

    answer, asked = asyncio.run(ask())
    assert answer is None
    assert asked >= 5


def test_a_scheduler_that_takes_the_question_and_never_answers_stops_nothing() -> None:
    earlier = EarlierJob(SilentScheduler(), meanwhile=nothing, patience_s=0)
    assert asyncio.run(asyncio.wait_for(earlier.known(), 60)) is None
