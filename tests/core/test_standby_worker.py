"""A standby's own machine: it waits without a rank, answers an offer, and follows the plan of the rank it was given."""

from __future__ import annotations

import msgspec

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import NodeId, Rank, RequestId, RunId
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.stimuli import WorkerTimer
from tests.core.desk import checkpoint
from tests.core.driven_worker import DrivenWorker, plan
from tests.core.pasts import began

OFFER = m.Offer(
    run=RunId(1),
    rank=Rank(1),
    replaced=NodeId("worker_1"),
    committed_step=20,
    held=(checkpoint(20, path="w1/20"),),
    began=(began(1, 0),),
)


def standby() -> DrivenWorker:
    """It was let in, and has said what it holds under its own name."""
    worker = DrivenWorker(standby=True).admitted(standby=True)
    worker.found()
    return worker


def found(rank: int | None = 1, *, search: int = 2) -> s.CheckpointsFound:
    """The search for its own files was the first, that for the offered rank the second."""
    of = None if rank is None else Rank(rank)
    return s.CheckpointsFound(RequestId(f"of-{rank}"), search, (checkpoint(20, path="w1/20"),), rank=of)


def test_it_registers_as_what_it_was_started_as() -> None:
    worker = DrivenWorker(standby=True, replaces="worker_7").registering()
    [register] = worker.sent(m.Register)
    assert (register.standby, register.replaces) == (True, "worker_7")
    [register] = DrivenWorker().registering().sent(m.Register)
    assert (register.standby, register.replaces) == (False, "")


def test_it_waits_for_a_rank_and_says_so() -> None:
    worker = standby()
    [ready] = worker.sent(m.Ready)
    assert ready.rank is None
    [said] = [one for one in worker.fire(WorkerTimer.WAIT_NOTE, 5_000) if isinstance(one, e.Log)]
    assert said.text == "for a rank to take over (standby), 5 s so far", "behind event=waiting"


def test_it_looks_for_the_files_of_the_offered_rank_and_says_what_it_can_read() -> None:
    worker = standby()
    worker.receive(OFFER)
    assert worker.effects_of(we.FindCheckpoints) == [
        we.FindCheckpoints(2, "job", RunId(1), Rank(1), offer=OFFER, began=OFFER.began)
    ]
    worker.handle(found())
    [ready] = worker.sent(m.Ready)
    assert (ready.rank, [one.path for one in ready.held]) == (1, ["w1/20"])


def test_what_it_holds_under_its_own_name_is_not_sent_after_the_answer() -> None:
    worker = standby()
    worker.receive(OFFER)
    worker.handle(found())
    worker.handle(found(None, search=1))
    assert worker.sent(m.Ready) == []
    worker.reconnect()
    worker.admitted(resumed=True, standby=True)
    [again] = worker.sent(m.Ready)
    assert again.rank == 1


def test_what_was_offered_by_a_scheduler_that_has_lost_its_store_is_forgotten() -> None:
    worker = standby()
    worker.receive(OFFER)
    worker.handle(found())
    worker.reconnect()
    worker.admitted(resumed=False, standby=True)
    worker.handle(found(None, search=3))
    assert [one.rank for one in worker.sent(m.Ready)] == [None], "it waits for what each knows of its own"


def test_answer_to_an_older_offer_is_not_sent() -> None:
    worker = standby()
    worker.receive(OFFER)
    worker.receive(m.Offer(run=RunId(1), rank=Rank(0), replaced=NodeId("worker_0"), committed_step=0))
    worker.handle(found(1))
    assert worker.sent(m.Ready) == []
    worker.handle(found(0, search=3))
    assert [one.rank for one in worker.sent(m.Ready)] == [0]


def test_with_the_plan_of_the_rank_it_keeps_where_the_files_lie() -> None:
    worker = standby()
    worker.receive(OFFER)
    worker.handle(found())
    worker.receive(plan(1))
    assert worker.effects_of(we.KeepDirectories) == [we.KeepDirectories(Rank(1))]
    assert len(worker.effects_of(we.OpenGeneration)) == 1
    assert worker.machine.admitted is not None
    assert not worker.machine.admitted.standby

    # From now on it is a worker like any.
    worker.receive(m.Interrupt(generation=plan(1).generation, reason="x"))
    worker.handle(s.TrainingStopped(plan(1).generation, 5))
    [find] = worker.effects_of(we.FindCheckpoints)
    assert (find.rank, find.offer) == (1, None)
    worker.handle(found(None, search=3))
    assert [one.rank for one in worker.sent(m.Ready)] == [None]
    worker.receive(plan(2))
    assert worker.effects_of(we.KeepDirectories) == []


def test_offer_to_who_trains_or_ends_means_nothing() -> None:
    worker = DrivenWorker().training()
    assert worker.receive(OFFER) == []
    fresh = DrivenWorker().registering()
    assert fresh.receive(OFFER) == []


def test_offer_to_who_fetches_for_the_plan_of_that_rank_keeps_it_from_no_later_plan() -> None:
    worker = standby()
    worker.receive(OFFER)
    worker.handle(found())
    source = m.Source(node_id=NodeId("worker_0"), address="worker_0:1")
    worker.receive(msgspec.structs.replace(plan(1, 20), digest="d", sources=(source,)))
    assert worker.receive(OFFER) == []

    worker.receive(m.Interrupt(generation=plan(1).generation, reason="worker_2 lost"))
    worker.handle(found(None, search=3))
    assert [one.rank for one in worker.sent(m.Ready)] == [None]


def test_standby_that_was_not_needed_says_so_and_ends_in_order() -> None:
    worker = standby()
    worker.receive(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all ranks are done"))
    [said] = worker.effects_of(e.Log)
    assert "no rank was lost: this standby has trained nothing" in said.text
    assert worker.effects_of(e.Exit) == [e.Exit("", "all ranks are done")]
    trained = DrivenWorker().training()
    trained.receive(m.JobEnded(outcome=m.JobOutcome.FINISHED, reason="all ranks are done"))
    assert trained.effects_of(e.Log) == []
