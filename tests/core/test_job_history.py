"""What a worker remembers of its job, and reports to a scheduler that knows another one or none."""

from __future__ import annotations

import msgspec

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, RequestId, ResumeToken, RunId
from recovery.core.policy import rebuild
from recovery.core.records import (
    GenerationRecord,
    JobRecord,
    NodeRecord,
)
from recovery.core.tokens import token_digest
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from recovery.core.worker.job_history import joined
from tests.core.desk import checkpoint
from tests.core.driven_worker import DrivenWorker, plan
from tests.core.pasts import began, past


def test_a_plan_is_noted_as_a_scheduler_would_store_it() -> None:
    driven = DrivenWorker().training()
    [noted] = [one for one in driven.effects_of(e.Persist) if one.records]
    job, node, generation = noted.records
    assert isinstance(job, JobRecord)
    assert isinstance(node, NodeRecord)
    assert isinstance(generation, GenerationRecord)
    assert (job.job, job.worker_count, job.generation) == ("job", 2, 1)
    assert (node.node_id, node.rank, node.token_digest) == ("worker_0", 1, token_digest("t"))
    assert (generation.generation, generation.step) == (1, 0)


def test_a_worker_of_a_job_says_so_when_it_registers_and_what_it_knows_when_it_is_asked_by_another() -> None:
    driven = DrivenWorker().training()
    driven.receive(m.Interrupt(generation=Generation(1), reason="why"))
    driven.handle(s.TrainingStopped(Generation(1), 5))
    assert [look.past for look in driven.effects_of(we.FindCheckpoints)] == [None]
    driven.found()
    driven.receive(plan(2))
    driven.reconnect()
    [register] = driven.sent(m.Register)
    assert (register.job, register.generation) == ("job", 2)

    driven.receive(m.Refused(request_id=RequestId("r"), code="UNKNOWN_TOKEN", reason="", retry_after_ms=0))
    driven.reconnect()
    driven.receive(
        m.Admitted(
            request_id=RequestId("r"),
            incarnation=Incarnation(1),
            token=ResumeToken("u"),
            rank=None,
            job="new",
            run=RunId(1),
            scheduler_incarnation=Incarnation(1),
            resumed=False,
        )
    )
    driven.handle(s.TrainingStopped(Generation(2), 9))
    [look] = driven.effects_of(we.FindCheckpoints)
    assert look.past is not None
    assert (look.job, look.past.job, look.past.rank, look.past.generation) == ("new", "job", 1, 2)
    assert [one.generation for one in look.past.began] == [1, 2]
    known = msgspec.structs.replace(look.past, held=(checkpoint(5),))
    driven.found(past=known)
    [ready] = driven.sent(m.Ready)
    assert ready.past == known

    driven.receive(msgspec.structs.replace(plan(3), job="job", incarnation=Incarnation(2), run=RunId(4)))
    assert driven.machine.admitted is not None
    assert (driven.machine.admitted.job, driven.machine.admitted.run) == ("job", 4)
    assert driven.machine.admitted.incarnation == 2
    assert driven.machine.past is not None
    assert [one.generation for one in driven.machine.past.began] == [3], "another run"


def test_a_new_scheduler_that_repeats_its_answer_is_not_taken_for_the_one_before() -> None:
    """Its first answer was lost on the way: the repeat says `resumed`, and the job is another one all the same."""
    driven = DrivenWorker().training()
    driven.handle(s.TrainingStopped(Generation(1), 5))
    driven.found(checkpoint(5))
    assert driven.machine.admitted is not None
    driven.reconnect()
    driven.receive(msgspec.structs.replace(driven.machine.admitted, job="new", resumed=True))

    [look] = driven.effects_of(we.FindCheckpoints)
    assert look.job == "new"
    assert look.past is not None
    assert driven.sent(m.Ready) == [], "it reported to the new job what it holds of the old one"


def test_what_a_process_remembers_and_what_its_store_holds_are_joined() -> None:
    memory = past(0, 20, generation=3, began=(began(3, 20),))
    store = past(0, 10, generation=2, began=(began(1, 0), began(2, 10)), saved_step=30)

    both = joined(memory, store)

    assert [one.generation for one in both.began] == [1, 2, 3]
    assert (both.generation, both.saved_step) == (3, 30)
    newer = msgspec.structs.replace(store, incarnation=Incarnation(8), generation=Generation(9))
    assert (joined(memory, newer).incarnation, joined(memory, newer).generation) == (8, 9), (
        "a newer incarnation wrote it"
    )
    assert joined(memory, None) == memory
    assert joined(memory, msgspec.structs.replace(store, run=RunId(2))) == memory


def test_a_store_that_this_release_cannot_read_ends_the_worker_by_its_code() -> None:
    driven = DrivenWorker().admitted()
    driven.handle(s.StoreRefused(RequestId("l"), "STORE_VERSION", "written by a newer release"))
    [leave] = driven.sent(m.Leave)
    assert leave.reason == "written by a newer release"
    driven.receive(m.Received(request_id=RequestId("l")))
    assert driven.effects_of(e.Exit) == [e.Exit("STORE_VERSION", "written by a newer release")]


def test_a_workers_rows_become_what_it_knows() -> None:
    driven = DrivenWorker().training()
    [noted] = [one for one in driven.effects_of(e.Persist) if one.records]
    job, node, generation = noted.records
    assert isinstance(job, JobRecord)
    assert isinstance(node, NodeRecord)
    assert isinstance(generation, GenerationRecord)
    older = msgspec.structs.replace(generation, run=RunId(0))
    known = rebuild.past_of(job, msgspec.structs.replace(node, rank=None), (older, generation), ())
    assert (known.rank, known.saved_step, len(known.began)) == (0, 0, 1)
    assert rebuild.past_of(job, node, (), ()).rank == 1


def test_what_a_search_for_the_job_before_finds_does_not_count_for_the_present_one() -> None:
    """The disk was slow, and the scheduler is another one meanwhile."""
    driven = DrivenWorker().admitted()
    before = driven.searches
    driven.reconnect()
    admitted = driven.machine.admitted
    assert admitted is not None
    driven.receive(msgspec.structs.replace(admitted, job="new", resumed=False))
    driven.found(checkpoint(20))
    assert [ready.held[0].step for ready in driven.sent(m.Ready)] == [20]

    driven.handle(s.CheckpointsFound(RequestId("late"), before, (checkpoint(5),)))

    assert driven.effects == []
    driven.reconnect()
    driven.receive(msgspec.structs.replace(admitted, job="new", resumed=True))
    assert [ready.held[0].step for ready in driven.sent(m.Ready)] == [20]
