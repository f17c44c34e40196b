"""What a worker fetches from other nodes: copies that were ordered, and its own file before it follows a plan."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.copy_messages import CopiesKept, CopyFailed, CopyOrder, CopyReport, FetchFault
from recovery.core.effects import Log, Persist, Report
from recovery.core.held import HeldCopy, Source
from recovery.core.ids import Generation, NodeId, Rank, RequestId, RunId
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.transitions import WorkerState
from tests.core.desk import checkpoint
from tests.core.driven_worker import DrivenWorker, plan

SOURCES = (
    Source(node_id=NodeId("worker_1"), address="a:1"),
    Source(node_id=NodeId("worker_2"), address="b:1"),
)
FAULT = FetchFault(source=SOURCES[0], reason="it is cut", damaged=True)


def order(step: int = 10, *, rank: int = 0, run: int = 1) -> CopyOrder:
    held = checkpoint(step, path=f"theirs/{step}", run=run)
    return CopyOrder(run=RunId(run), rank=Rank(rank), checkpoint=held, sources=SOURCES)


def elsewhere(generation: int, step: int = 10) -> m.Rollback:
    """A plan whose file this node does not have."""
    changes = {"sources": SOURCES, "digest": f"own/{step}@1", "written": Generation(1), "file_bytes": 7}
    return msgspec.structs.replace(plan(generation, step), **changes)


def came(
    worker: DrivenWorker, *, fetch: int, of: str, step: int = 10, failures: tuple[FetchFault, ...] = ()
) -> m.HeldCheckpoint:
    held = msgspec.structs.replace(checkpoint(step, path=f"copies/{step}"), digest=f"{of}/{step}@1")
    worker.handle(s.Fetched(RequestId(f"came {fetch}"), fetch, held, failures))
    return held


def idle() -> DrivenWorker:
    worker = DrivenWorker().admitted()
    worker.found()
    return worker


# --- copies of others -----------------------------------------------------------------------------------------------------


def test_a_registration_says_where_files_are_served() -> None:
    worker = DrivenWorker()
    worker.handle(s.Started(RequestId("r"), None))
    worker.handle(s.Connected("me:1"))
    assert worker.sent(m.Register)[0].serves == "me:1"


def test_a_copy_that_is_ordered_is_fetched_once_and_reported_until_it_is_answered() -> None:
    worker = DrivenWorker().training()
    worker.receive(order())
    [fetch] = worker.effects_of(we.Fetch)
    assert (fetch.job, fetch.rank, fetch.checkpoint, fetch.sources) == ("job", 0, order().checkpoint, SOURCES)
    assert not fetch.for_plan
    assert worker.receive(order()) == []
    worker.receive(order(20))
    assert worker.effects_of(we.Fetch)[0].fetch_id == 2

    held = came(worker, fetch=1, of="theirs")
    report = CopyReport(request_id=RequestId("came 1"), rank=Rank(0), checkpoint=held)
    worker.assert_sent_until_answered(report)
    worker.receive(order())
    assert worker.effects_of(we.Fetch), "it is no longer being made"


def test_a_copy_that_does_not_come_is_reported_with_what_each_source_lacks() -> None:
    worker = DrivenWorker().training()
    worker.receive(order())
    worker.handle(s.FetchFailed(RequestId("x"), 1, (FAULT,), "no space left"))
    [failed] = worker.sent(CopyFailed)
    assert (failed.rank, failed.step, failed.digest) == (0, 10, "theirs/10@1")
    assert (failed.failures, failed.reason, failed.gives_up, failed.generation) == (
        (FAULT,),
        "no space left",
        True,
        0,
    )
    assert worker.effects_of(Log)[0].text == (
        "step 10 of rank 0 was not fetched: worker_1: it is cut; no space left"
    )
    assert worker.handle(s.FetchFailed(RequestId("y"), 1, (FAULT,))) == []


def test_a_source_that_failed_before_another_gave_it_is_named() -> None:
    worker = DrivenWorker().training()
    worker.receive(order())
    long = msgspec.structs.replace(FAULT, reason="x" * 2_000)
    came(worker, fetch=1, of="theirs", failures=(long,))
    [failed], [report] = worker.sent(CopyFailed), worker.sent(CopyReport)
    assert (failed.request_id, failed.gives_up, len(failed.failures[0].reason)) == ("came 1.f", False, 1_024)
    assert report.rank == 0


def test_orders_of_another_run_or_to_who_leaves_are_nothing() -> None:
    worker = DrivenWorker().registering()
    assert worker.receive(order()) == []
    worker = DrivenWorker().training()
    assert worker.receive(order(run=2)) == []
    worker.receive(order())
    worker.handle(s.StopAsked(RequestId("stop"), "SIGTERM"))
    assert worker.receive(order(20)) == []
    came(worker, fetch=1, of="theirs")
    assert worker.effects == []
    assert worker.handle(s.FetchFailed(RequestId("x"), 1, (FAULT,))) == []


def test_copies_are_let_go_by_what_the_scheduler_says_and_by_plans() -> None:
    worker = DrivenWorker().training()
    worker.receive(CopiesKept(run=RunId(1), copied=30, oldest=20))
    [retain] = worker.effects_of(we.RetainCopies)
    assert (retain.job, retain.run, retain.oldest) == ("job", 1, 20)
    assert [one.generation for one in retain.began] == [1]

    worker.receive(m.Interrupt(generation=Generation(1), reason="x"))
    worker.handle(s.TrainingStopped(Generation(1), 30))
    worker.receive(plan(2, 10))
    [retain] = worker.effects_of(we.RetainCopies)
    assert retain.oldest == 10, "what the plan needs stays"
    assert [(one.generation, one.step) for one in retain.began] == [(1, 0), (2, 10)]


def test_who_has_no_copies_and_no_past_removes_none() -> None:
    worker = DrivenWorker().training()
    assert not worker.effects_of(we.RetainCopies)
    worker = idle()
    assert worker.receive(CopiesKept(run=RunId(1), copied=30, oldest=20)) == []
    worker = DrivenWorker().admitted()
    copies = (HeldCopy(rank=Rank(0), checkpoint=checkpoint(10)),)
    worker.found(copies=copies)
    assert worker.sent(m.Ready)[0].copies == copies
    worker.receive(plan(1))
    assert worker.effects_of(we.RetainCopies)[0].oldest == 0


def test_files_that_are_being_copied_or_lie_elsewhere_are_spared() -> None:
    worker = DrivenWorker().training()
    worker.receive(m.Committed(run=RunId(1), step=30, copied=10, copying=20))
    assert worker.effects_of(we.Retain) == [we.Retain(30, (10, 20), None, (20,))]
    worker.receive(m.Committed(run=RunId(1), step=40))
    assert worker.effects_of(we.Retain) == [we.Retain(40, ())]


# --- its own, for a plan ----------------------------------------------------------------------------------------------------


def test_a_plan_that_names_sources_is_followed_when_its_file_lies_here() -> None:
    worker = idle()
    worker.receive(elsewhere(1))
    [fetch] = worker.effects_of(we.Fetch)
    assert fetch.for_plan
    assert (fetch.rank, fetch.checkpoint.digest, fetch.checkpoint.file_bytes) == (1, "own/10@1", 7)
    assert not worker.effects_of(we.OpenGeneration)
    assert worker.receive(elsewhere(1)) == []
    assert worker.found() == []

    held = came(worker, fetch=1, of="own", failures=(FAULT,))
    [opened] = worker.effects_of(we.OpenGeneration)
    assert (opened.plan.path, opened.plan.sources, opened.plan.step) == (held.path, (), 10)
    [persist] = worker.effects_of(Persist)
    [report] = persist.then
    assert isinstance(report, Report)
    assert report.message == m.CheckpointReport(request_id=RequestId("came 1"), checkpoint=held)
    assert worker.sent(CopyFailed)[0].generation == 1
    assert worker.machine.state is WorkerState.TRAINING


def test_a_plan_whose_file_does_not_come_waits_for_its_end() -> None:
    worker = idle()
    worker.receive(elsewhere(1))
    worker.handle(s.FetchFailed(RequestId("x"), 1, (FAULT,)))
    [failed] = worker.sent(CopyFailed)
    assert (failed.generation, failed.rank, failed.gives_up) == (1, 1, True)
    assert worker.handle(s.FetchFailed(RequestId("y"), 1, (FAULT,))) == []

    assert worker.receive(m.Interrupt(generation=Generation(0), reason="an older one")) == []
    worker.receive(m.Interrupt(generation=Generation(1), reason="x"))
    assert worker.effects_of(we.FindCheckpoints)
    worker.found()
    assert worker.sent(m.Ready)[0].generation == 1


def test_what_comes_for_a_plan_that_is_over_is_not_followed() -> None:
    worker = idle()
    worker.receive(elsewhere(1))
    worker.receive(m.Interrupt(generation=Generation(1), reason="x"))
    came(worker, fetch=1, of="own")
    assert worker.effects == []
    worker.found()
    worker.receive(elsewhere(2))
    assert worker.effects_of(we.Fetch)[0].fetch_id == 2


def test_who_reconnects_while_it_fetches_says_that_it_has_the_plan() -> None:
    worker = idle()
    worker.receive(elsewhere(1))
    worker.reconnect()
    assert (worker.sent(m.Register)[0].generation, worker.sent(m.Register)[0].job) == (1, "job")
    worker.admitted(resumed=True)
    came(worker, fetch=1, of="own")
    assert worker.effects_of(we.OpenGeneration)


def test_who_is_new_to_the_scheduler_while_it_fetches_looks_again() -> None:
    worker = idle()
    worker.receive(elsewhere(1))
    worker.reconnect()
    worker.admitted()
    assert worker.effects_of(we.FindCheckpoints)
    came(worker, fetch=1, of="own")
    assert worker.effects == []


def test_a_plan_that_came_while_it_trained_may_name_sources_too() -> None:
    worker = DrivenWorker().training()
    worker.receive(elsewhere(2))
    worker.handle(s.TrainingStopped(Generation(1), 12))
    assert worker.effects_of(we.Fetch)[0].for_plan
    came(worker, fetch=1, of="own")
    assert worker.effects_of(we.OpenGeneration)
    assert worker.effects_of(we.RetainCopies)


def test_a_job_that_ends_while_it_fetches_ends_it() -> None:
    worker = idle()
    worker.receive(elsewhere(1))
    worker.receive(m.JobEnded(outcome=m.JobOutcome.JOB_FAILED, reason="x"))
    came(worker, fetch=1, of="own")
    assert worker.effects == []
