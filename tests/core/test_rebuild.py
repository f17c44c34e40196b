"""A scheduler that knows nothing of a job that its workers know: it ends by name, or takes the job up again, and never begins at step 0."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core.causes import Cause
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, ResumeToken, RunId
from recovery.core.records import (
    CheckpointRecord,
    CheckpointState,
    EventKind,
    GenerationRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    Record,
    RunRecord,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.job_states import new_job, next_incarnation
from recovery.core.scheduler.machine import SchedulerMachine
from recovery.core.scheduler.membership import lost_scheduler_store
from recovery.core.tokens import token_digest
from tests.core.desk import Desk, Worker, checkpoint, registration, running_workers
from tests.core.pasts import OLD, come, first_after, pass_time, past, ready

# --- a scheduler that is not asked to rebuild ----------------------------------------------------------------------------


def test_a_living_worker_of_another_job_ends_a_scheduler_that_knows_nothing() -> None:
    desk = Desk(Rules(worker_count=2))
    connection = desk.connect()
    register = registration(generation=Generation(7), job=OLD)

    desk.say(connection, register)

    assert desk.exit == e.Exit("STORE_LOST", f"node worker_0 trains job {OLD}, generation 7")
    assert desk.tray[connection] == [], "the worker was answered and will not train on"
    assert desk.row(NodeRecord) == []


def test_the_own_store_of_a_worker_ends_a_scheduler_that_knows_nothing() -> None:
    desk = Desk(Rules(worker_count=2))
    come(desk, past(0, 10, 20), None)

    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"
    assert f"the own store of worker_0 is of job {OLD}: run 1, rank 0" in desk.exit.reason
    assert EventKind.PLAN_MADE not in desk.kinds()


def test_a_scheduler_that_ends_for_a_lost_store_lets_nobody_in_any_more() -> None:
    """The same moment ends it and lets an id go that a process waits for."""
    desk = Desk(Rules(worker_count=1, standby_count=1, rebuild_store=True, rejoin_window_ms=0))
    worker, standby = Worker(desk, "worker_0"), Worker(desk, "worker_9", standby=True)
    for one in (worker, standby):
        one.register()
    standby.die()
    waits = Worker(desk, "worker_9", standby=True)
    waits.stays = True
    waits.register()
    ready(worker, past(0, worker_count=2))
    assert not desk.machine.state.store_rebuild.ends_scheduler, "the standby may be back in a moment"

    desk.at(desk.now + desk.rules.reconnect_grace_ms)

    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"
    assert waits.hears(m.Admitted) == 0


def test_a_job_that_a_person_has_archived_starts_over() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    desk.machine.state.archived_jobs = frozenset({OLD})
    workers = [Worker(desk, f"worker_{number}", job=OLD) for number in range(2)]
    for worker in workers:
        worker.register()
    for rank, worker in enumerate(workers):
        ready(worker, past(rank, 10))

    assert desk.exit is None
    assert workers[0].last(m.Rollback).step == 0
    assert workers[0].last(m.Rollback).job == "job"


def test_a_process_of_another_job_is_refused_where_there_is_a_plan() -> None:
    desk = Desk(Rules(worker_count=2))
    running_workers(desk)

    answer = Worker(desk, "worker_9", job=OLD).register()

    assert isinstance(answer, m.Refused)
    assert (answer.code, answer.retry_after_ms) == ("JOB_MISMATCH", None)
    assert OLD in answer.reason


def test_the_own_store_of_another_job_is_passed_over_aloud_where_there_is_a_plan() -> None:
    desk = Desk(Rules(worker_count=2))
    [first, _] = running_workers(desk)
    state = desk.machine.state
    node = state.nodes[NodeId("worker_0")]
    message = m.Ready(request_id=first.request(), generation=first.generation, step=1, past=past(0, 10))

    [said] = lost_scheduler_store.check_past(state, node, message)

    assert isinstance(said, e.Log)
    assert said.warning
    assert "it counts nowhere in this job" in said.text
    assert lost_scheduler_store.check_past(state, node, msgspec.structs.replace(message, past=None)) == []


# --- a scheduler that is asked to ----------------------------------------------------------------------------------------


def test_it_takes_the_job_up_with_its_ranks_its_numbers_and_its_newest_common_step() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    one, other = come(desk, past(1, 10, 20, generation=4), past(0, 10, 20, 30, generation=4))

    plans = [worker.last(m.Rollback) for worker in (one, other)]
    assert [(plan.rank, plan.step, plan.path) for plan in plans] == [(1, 20, "1/20"), (0, 20, "0/20")]
    assert {(plan.job, plan.run, plan.generation, plan.incarnation) for plan in plans} == {
        (OLD, 1, first_after(1), 4)
    }
    [job] = desk.row(JobRecord)
    assert (job.job, job.state, job.generation, job.scheduler_incarnation) == (
        OLD,
        JobState.RUNNING,
        first_after(1),
        6,
    )
    assert EventKind.STORE_REBUILT in desk.kinds()
    assert {(row.node_id, row.rank, row.incarnation) for row in desk.row(NodeRecord)} == {
        ("worker_0", 1, 4),
        ("worker_1", 0, 4),
    }

    desk.restart()
    worker = Worker(desk, "worker_0", job=OLD)
    worker.token, worker.incarnation, worker.generation = (
        one.token,
        Incarnation(4),
        Generation(first_after(1)),
    )
    answer = worker.register()
    assert isinstance(answer, m.Admitted)
    assert (answer.resumed, answer.job, answer.rank) == (True, OLD, 1)


def test_running_workers_are_let_in_to_report() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    workers = [Worker(desk, f"worker_{number}", job=OLD) for number in range(2)]
    for rank, worker in enumerate(workers):
        worker.generation = Generation(4)
        assert isinstance(worker.register(), m.Admitted)
        assert worker.last(m.Interrupt).generation == 4, "who trains is sent an interrupt"
        ready(worker, past(rank, 10, generation=4))
    assert workers[0].last(m.Rollback).step == 10


def test_what_a_worker_held_before_the_plan_that_it_knows_does_not_count() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    workers = [Worker(desk, f"worker_{number}", job=OLD) for number in range(2)]
    for worker in workers:
        worker.generation = Generation(4)
        assert isinstance(worker.register(), m.Admitted)
    for generation, steps in ((0, (10,)), (4, (10, 20))):
        for rank, worker in enumerate(workers):
            worker.generation = Generation(generation)
            ready(worker, past(rank, *steps, generation=4))
    assert workers[0].last(m.Rollback).step == 20


def test_who_knows_nothing_takes_the_rank_that_is_free_and_the_job_stops_rather_than_start_over() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    workers = come(desk, None, past(0, 10))
    assert desk.row(JobRecord)[0].state is JobState.FORMING, "who was rank 1 has one lease to come"
    pass_time(desk, desk.rules.lease_ms, *workers)

    [job] = desk.row(JobRecord)
    assert (job.job, job.state) == (OLD, JobState.FAILED)
    assert "no step is held by all 2 ranks" in job.reason
    assert EventKind.STORE_REBUILT in desk.kinds()
    assert {(row.node_id, row.rank) for row in desk.row(NodeRecord)} == {("worker_0", 1), ("worker_1", 0)}
    assert {row.state for row in desk.row(CheckpointRecord)} == {CheckpointState.COMMITTED}


def test_a_job_that_stopped_rather_than_start_over_stops_again_however_often_its_scheduler_starts() -> None:
    """Found by the simulation: who had saved said so again, and its row told the process behind that one of no committed step."""
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    workers = come(desk, None, past(0, 10))
    pass_time(desk, desk.rules.lease_ms, *workers)
    held = ((), past(0, 10).held)
    for _ in range(3):
        desk.restart()
        assert desk.machine.state.job.state is JobState.INTERRUPTED
        for worker in workers:
            [worker.incarnation] = [
                row.incarnation for row in desk.row(NodeRecord) if row.node_id == worker.node_id
            ]
            assert isinstance(worker.register(), m.Admitted)
        for worker, files in zip(workers, held, strict=True):
            worker.ready(*files)
        [job] = desk.row(JobRecord)
        assert (job.state, job.generation) == (JobState.FAILED, 1)
        assert "no step is held by all 2 ranks" in job.reason
    assert EventKind.PLAN_MADE not in desk.kinds()


def test_where_nobody_knows_anything_a_new_job_begins() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    workers = come(desk, None, None)
    assert workers[0].last(m.Rollback).job == "job"


@pytest.mark.parametrize(
    ("pasts", "why"),
    [
        ((past(0), past(1, job="x")), "different jobs"),
        ((past(0, worker_count=3), past(1, worker_count=3)), "had 3 workers, here are 2 (MS_WORKER_NUM)"),
    ],
)
def test_what_does_not_fit_together_ends_it_by_name(
    pasts: tuple[m.JobHistory, m.JobHistory], why: str
) -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    come(desk, *pasts)
    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"
    assert why in desk.exit.reason
    assert desk.row(JobRecord)[0].job == "job"


def test_a_store_that_was_there_and_that_nobody_remembers_is_no_new_job() -> None:
    rules = Rules(worker_count=2, rebuild_store=True)
    desk = Desk(rules)
    job = msgspec.structs.replace(new_job("new", rules), cause=Cause.STORE_REBUILT)
    desk.machine = SchedulerMachine(next_incarnation(job), rules)
    come(desk, None, None)
    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"
    assert "no worker that came knows anything of it" in desk.exit.reason


# --- a store that was rebuilt from files ---------------------------------------------------------------------------------


def _rebuilt_store(desk: Desk, tokens: dict[str, str], generation: int = 4) -> None:
    """As scheduler/store_rebuild.py writes it."""
    rows: list[Record] = [
        msgspec.structs.replace(
            new_job(OLD, desk.rules),
            generation=Generation(generation),
            reason=lost_scheduler_store.REBUILDING,
            cause=Cause.STORE_REBUILT,
        ),
        RunRecord(run=RunId(1)),
        GenerationRecord(
            run=RunId(1), generation=Generation(generation), step=10, epoch=0, step_in_epoch=0, because=""
        ),
    ]
    rows += [
        NodeRecord(
            node_id=NodeId(name),
            role=m.Role.WORKER,
            rank=Rank(rank),
            incarnation=Incarnation(3),
            state=NodeState.LIVE,
            token_digest=token_digest(token),
            admission_request="",
            host="",
            pid=1,
        )
        for rank, (name, token) in enumerate(tokens.items())
    ]
    for row in rows:
        desk._write(e.Persist((row,)))
    desk.restart()


def _returning(desk: Desk, name: str, generation: int) -> Worker:
    worker = Worker(desk, name, job=OLD)
    worker.token, worker.incarnation = ResumeToken(f"t-{name}"), Incarnation(3)
    worker.generation = Generation(generation)
    return worker


def test_living_processes_resume_stop_and_go_on_from_the_newest_common_step() -> None:
    desk = Desk(Rules(worker_count=2))
    _rebuilt_store(desk, {"a": "t-a", "b": "t-b"})
    workers = [_returning(desk, "b", 5), _returning(desk, "a", 4)]
    for worker in workers:
        answer = worker.register()
        assert isinstance(answer, m.Admitted)
        assert (answer.resumed, answer.job) == (True, OLD)
        assert worker.last(m.Interrupt).generation == worker.generation or worker.generation == 4
    for worker in workers:
        worker.ready(checkpoint(20, generation=4, path=worker.node_id), step=22)

    plans = [worker.follow() for worker in workers]
    assert [(plan.rank, plan.step, plan.generation) for plan in plans] == [(1, 20, 6), (0, 20, 6)]
    assert {row.host for row in desk.row(NodeRecord)} == {"10.0.0.1"}


def test_a_rebuilt_job_that_failed_before_it_met_forms_again_and_one_that_had_met_waits_for_its_own() -> None:
    desk = Desk(Rules(worker_count=2, topology_timeout_ms=1_000))
    _rebuilt_store(desk, {"a": "t-a"})
    desk.at(2_000)
    assert desk.row(JobRecord)[0].state is JobState.FAILED
    desk.restart()
    assert desk.machine.state.job.state is JobState.FORMING

    desk = Desk(Rules(worker_count=2, topology_timeout_ms=1_000))
    _rebuilt_store(desk, {"a": "t-a", "b": "t-b"})
    desk.at(2_000)
    desk.restart()
    assert desk.machine.state.job.state is JobState.INTERRUPTED


def test_a_worker_that_knows_a_generation_which_the_store_has_lost_stops() -> None:
    desk = Desk(Rules(worker_count=2))
    one, other = running_workers(desk)
    one.die()
    one.generation = Generation(3)
    one.register()

    assert one.last(m.Interrupt).generation == 3
    assert other.last(m.Interrupt).generation == 1
    assert "knows generation 3, which the store has lost" in desk.row(JobRecord)[0].reason


def test_a_file_of_a_newer_generation_than_any_node_has_noted_keeps_its_number_to_itself() -> None:
    """A node's row may be older than its files: those that are read from their manifests alone say the number."""
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    pasts = (msgspec.structs.replace(past(rank, 10, 20, generation=1004), generation=4) for rank in range(2))
    workers = come(desk, *pasts)

    assert {worker.last(m.Rollback).generation for worker in workers} == {first_after(1004)}
