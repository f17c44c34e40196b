"""An exit code of 0: the scheduler says whether its worker was done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from recovery.core.causes import Cause
from recovery.core.ids import Generation, Incarnation, NodeId, RunId
from recovery.core.records import JobRecord, JobState
from recovery.launch import worker_completion
from recovery.launch.placement import Placed, ProcessKind
from recovery.launch.worker_completion import WorkerCompletion
from recovery.transport.inspection_client import NoAnswerError


class Scheduler:
    """Answers in order; the last answer stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, NoAnswerError):
            raise answer
        return answer


def job(state: str, cause: str = "") -> dict[str, Any]:
    # A scheduler of a release before this one names no cause.
    return {"state": state, "nodes": [{"node_id": "1", "cause": cause}, {"node_id": "0"}]}


def record(job: str, state: JobState) -> JobRecord:
    return JobRecord(
        job=job,
        worker_count=2,
        server_count=0,
        run=RunId(1),
        state=state,
        generation=Generation(1),
        scheduler_incarnation=Incarnation(1),
    )


def is_done(known: WorkerCompletion, node_id: str = "1") -> bool:
    return asyncio.run(known.includes_worker(NodeId(node_id), f"worker_{node_id}"))


@pytest.mark.parametrize("state", ["forming", "running", "interrupted", "failed"])
def test_nobody_is_done_before_the_job_is_finished(state: str) -> None:
    assert not is_done(WorkerCompletion(Scheduler(job(state))))


def test_a_finished_job_is_asked_about_once() -> None:
    scheduler = Scheduler(job("finished"))
    known = WorkerCompletion(scheduler)
    assert is_done(known)
    assert is_done(known, "0")
    assert scheduler.asked == 1


def test_who_was_in_the_run_before_was_done() -> None:
    known = WorkerCompletion(Scheduler(job("forming", Cause.RUN_FINISHED.value)))
    assert is_done(known)
    assert not is_done(known, "0")
    assert not is_done(known, "7")


def test_a_scheduler_that_is_started_again_is_waited_for() -> None:
    scheduler = Scheduler(NoAnswerError("refused"), NoAnswerError("refused"), job("running"))
    assert not is_done(WorkerCompletion(scheduler))
    assert scheduler.asked == 3


def test_a_scheduler_of_this_host_that_was_done_answers_for_all() -> None:
    known = WorkerCompletion(Scheduler(NoAnswerError("refused")))
    scheduler = Placed(
        name="scheduler",
        kind=ProcessKind.SCHEDULER,
        node_id=NodeId("scheduler"),
        rank=None,
        local_index=0,
        command=(),
        variables={},
        cpus=(),
    )
    assert asyncio.run(known.includes(scheduler, scheduler.node_id))
    assert is_done(known)


def test_a_scheduler_that_never_answers_is_named_on_the_console(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_completion, "_PATIENCE_MS", 0)
    assert is_done(WorkerCompletion(Scheduler(NoAnswerError("refused"))))
    assert "worker_1: no scheduler says whether it was done (refused)" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("answer", "finished"),
    [
        (job("finished"), True),
        (job("running"), False),
        ({**job("finished"), "job": "another"}, False),
        (NoAnswerError("nobody listens"), False),
    ],
)
def test_a_refresh_is_one_question(answer: Any, finished: bool) -> None:
    scheduler = Scheduler(answer if isinstance(answer, NoAnswerError) else {"job": "this", **answer})
    known = WorkerCompletion(scheduler)
    known.note_job("this")
    says_so = not isinstance(answer, NoAnswerError) and answer.get("job", "this") == "this"
    assert asyncio.run(known.refresh()) == says_so
    assert (known.is_finished, scheduler.asked) == (finished, 1)
    known.is_finished = True
    assert asyncio.run(known.refresh())
    assert scheduler.asked == 1, "what is known is asked no more"


@pytest.mark.parametrize(
    ("stored", "is_here", "finished"),
    [
        (record("this", JobState.FINISHED), False, True),
        (record("this", JobState.RUNNING), False, False),
        # The scheduler of this launcher has written it, whatever its launcher has heard.
        (record("another", JobState.FINISHED), True, True),
        (record("another", JobState.FINISHED), False, None),
        (None, True, None),
    ],
)
def test_the_store_of_a_scheduler_that_has_ended_says_whether_the_job_has_finished(
    stored: JobRecord | None, is_here: bool, finished: bool | None
) -> None:
    known = WorkerCompletion(Scheduler(NoAnswerError("nobody listens")), lambda: stored)
    known.note_job("this")
    assert known.read_stored(is_here=is_here) is finished
