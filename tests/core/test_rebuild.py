"""A scheduler that knows nothing of a job that its workers know: it ends by name, or takes the job up again, and never begins at step 0."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import effects as e
from recovery.core import messages as m
from recovery.core import rebuild as room
from recovery.core import stimuli as s
from recovery.core.cluster import Cluster, new_job, next_life
from recovery.core.ids import Generation, Incarnation, NodeId, Rank, RequestId, ResumeToken, RunId
from recovery.core.memory import joined
from recovery.core.policy import rebuild
from recovery.core.policy.ranks import keep
from recovery.core.policy.rebuild import Rebuilt, Unclear
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
from recovery.core.tokens import token_digest
from tests.core.desk import Desk, Worker, checkpoint, full_house
from tests.core.test_member_life import Pocket, plan

OLD = "the old job"


def past(rank: int, *steps: int, generation: int = 1, **changes: object) -> m.Past:
    """What a rank of a world of two knows of the old job."""
    known = m.Past(
        job=OLD,
        run=RunId(1),
        rank=Rank(rank),
        worker_count=2,
        server_count=0,
        incarnation=Incarnation(3),
        generation=Generation(generation),
        scheduler_incarnation=Incarnation(5),
        began=(began(generation, 0),),
        held=tuple(
            checkpoint(step, generation=generation, path=f"{rank}/{step}")
            for step in sorted(steps, reverse=True)
        ),
        saved_step=max(steps, default=0),
    )
    return msgspec.structs.replace(known, **changes)


def began(generation: int, step: int) -> m.Began:
    return m.Began(generation=Generation(generation), step=step, epoch=0, step_in_epoch=0)


def built(*pasts: m.Past) -> Rebuilt:
    found = rebuild.rebuild({NodeId(f"w{one.rank}"): one for one in pasts})
    assert isinstance(found, Rebuilt)
    return found


def ready(worker: Worker, known: m.Past | None, *held: m.HeldCheckpoint) -> list[m.FromScheduler]:
    return worker.tell(
        m.Ready(request_id=worker.request(), generation=worker.generation, step=0, held=held, past=known)
    )


def come(desk: Desk, *pasts: m.Past | None) -> list[Worker]:
    """Both workers register and say what they know."""
    workers = [Worker(desk, f"worker_{number}") for number in range(2)]
    for worker in workers:
        worker.register()
    for worker, known in zip(workers, pasts, strict=True):
        ready(worker, known)
    return workers


# --- what the workers know together ------------------------------------------------------------------------------------


def test_the_newest_common_step_is_committed_and_numbers_go_on_from_the_highest() -> None:
    found = built(past(0, 10, 20, generation=4), past(1, 10, 20, 30, generation=4, began=()))

    assert (found.job, found.run, found.generation, found.scheduler_incarnation) == (OLD, 1, 4, 5)
    assert found.ranks == {"w0": 0, "w1": 1}
    assert found.missing() == []
    states = {(int(one.rank), one.step): one.state for one in found.checkpoints}
    assert {states[0, 20], states[1, 10]} == {CheckpointState.COMMITTED}
    assert states[1, 30] is CheckpointState.PUBLISHED
    assert {one.reason for one in found.checkpoints} == {""}


def test_a_file_of_a_suffix_that_was_rolled_back_is_left_out() -> None:
    one = past(0, 10, 20, generation=1, began=(began(1, 0), began(2, 10)))
    other = past(1, 10, 20, generation=1)

    found = built(one, other)

    assert {(file.rank, file.step) for file in found.checkpoints} == {(0, 10), (1, 10)}
    assert [(one.generation, one.step) for one in found.generations] == [(1, 0), (2, 10)]
    assert found.generation == 2


def test_of_two_words_on_where_a_generation_began_the_lower_counts() -> None:
    found = built(past(0, began=(began(1, 5),)), past(1, began=(began(1, 3),)))
    assert [one.step for one in found.generations] == [3]


def test_where_a_forgotten_generation_began_is_taken_from_its_lowest_file() -> None:
    newer = (checkpoint(20, generation=2, path="0/20"), checkpoint(10, generation=1, path="0/10"))
    found = built(
        past(0, held=newer, generation=3, began=(began(1, 0),)),
        past(1, 10, 20, generation=1, began=(began(1, 0),)),
    )

    assert [(one.generation, one.step) for one in found.generations] == [(1, 0), (2, 19)]
    assert "where generation 2 began, taken for step 19" in found.guesses
    steps_of_1 = {file.step for file in found.checkpoints if file.rank == 1}
    assert steps_of_1 == {10}, "step 20 of generation 1 beside step 20 of generation 2"


@pytest.mark.parametrize("lost_files", [False, True])
def test_who_has_saved_keeps_the_plan_from_step_0_even_without_files(lost_files: bool) -> None:
    one = past(0, 10)
    found = built(msgspec.structs.replace(one, held=()) if lost_files else one, past(1))

    assert CheckpointState.COMMITTED in {file.state for file in found.checkpoints}
    assert any("taken for so" in guess for guess in found.guesses)


def test_a_note_of_a_file_that_is_there_is_not_doubled() -> None:
    found = built(past(0, 10), past(1))
    assert [(file.rank, file.step, file.reason) for file in found.checkpoints] == [(0, 10, rebuild.NOT_KNOWN)]


def test_a_generation_that_began_above_0_proves_a_committed_step() -> None:
    found = built(past(0, began=(began(1, 40),)), past(1, began=()))
    assert found.checkpoints == ()
    desk = Desk(Rules(worker_count=2))
    desk.cluster.table.coordinator.load((), found.generations)
    target = desk.cluster.table.coordinator.target(allow_restart_from_zero=False)
    assert type(target).__name__ == "NoCommonStep"


def test_an_older_run_counts_only_for_the_numbers() -> None:
    found = built(past(0, 10), past(1, 90, run=RunId(0), scheduler_incarnation=Incarnation(9)))

    assert found.missing() == [1]
    assert found.scheduler_incarnation == 9
    assert found.incarnations == {"w0": 3, "w1": 3}
    assert {file.rank for file in found.checkpoints} == {0}
    assert found.guesses[0] == "w1 knows only run 0 of 1"
    assert found.guesses[-1] == "nobody knows who was rank 1"


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (past(0), past(1, job="x"), "2 different jobs"),
        (past(0), past(1, worker_count=3), "different numbers of workers"),
        (past(0), past(0), "both rank 0"),
        (past(0), past(7), "rank 7 of 2 workers"),
    ],
)
def test_workers_that_contradict_each_other_are_named(one: m.Past, other: m.Past, why: str) -> None:
    found = rebuild.rebuild({NodeId("a"): one, NodeId("b"): other})
    assert isinstance(found, Unclear)
    assert why in found.reason


def test_what_was_taken_from_where_is_told() -> None:
    known = {NodeId("w0"): past(0, 10, 20), NodeId("w1"): past(1)}
    found = rebuild.rebuild(known)
    assert isinstance(found, Rebuilt)
    told = rebuild.told(found, known)
    assert told.startswith(
        "w0: rank 0, generation 1, holds steps 10, 20; w1: rank 1, generation 1, holds nothing"
    )
    assert "; not known: " in told
    known = {NodeId("w0"): past(0, 10), NodeId("w1"): past(1, 10)}
    found = rebuild.rebuild(known)
    assert isinstance(found, Rebuilt)
    assert "not known" not in rebuild.told(found, known)


def test_ranks_that_are_kept_leave_the_rest_to_the_others() -> None:
    assigned = {NodeId("a"): Rank(0), NodeId("b"): Rank(1), NodeId("c"): Rank(2)}
    assert keep(assigned, {NodeId("b"): Rank(0)}) == {"a": 1, "b": 0, "c": 2}


# --- a scheduler that is not asked to rebuild ----------------------------------------------------------------------------


def test_a_living_worker_of_another_job_ends_a_scheduler_that_knows_nothing() -> None:
    desk = Desk(Rules(worker_count=2))
    connection = desk.connect()
    register = _register(desk, OLD)

    desk.say(connection, register)

    assert desk.exit == e.Exit("STORE_LOST", f"node worker_0 trains job {OLD}, generation 7")
    assert desk.tray[connection] == [], "the worker was answered and will not train on"
    assert desk.row(NodeRecord) == []


def _register(desk: Desk, job: str) -> m.Register:
    return m.Register(
        request_id=RequestId("r"),
        protocol=m.PROTOCOL_VERSION,
        node_id=NodeId("worker_0"),
        role=m.Role.WORKER,
        host="",
        pid=1,
        worker_count=desk.rules.worker_count,
        server_count=0,
        recovery_enabled=True,
        token=None,
        generation=Generation(7),
        job=job,
    )


def test_the_own_store_of_a_worker_ends_a_scheduler_that_knows_nothing() -> None:
    desk = Desk(Rules(worker_count=2))
    come(desk, past(0, 10, 20), None)

    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"
    assert f"the own store of worker_0 tells of job {OLD}: run 1, rank 0" in desk.exit.reason
    assert EventKind.PLAN_MADE not in desk.kinds()


def test_a_job_that_a_person_has_laid_aside_begins_anew() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    desk.cluster.table.laid_aside = frozenset({OLD})
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
    full_house(desk)

    answer = Worker(desk, "worker_9", job=OLD).register()

    assert isinstance(answer, m.Refused)
    assert (answer.code, answer.retry_after_ms) == ("JOB_MISMATCH", None)
    assert OLD in answer.reason


def test_the_own_store_of_another_job_is_passed_over_aloud_where_there_is_a_plan() -> None:
    desk = Desk(Rules(worker_count=2))
    [first, _] = full_house(desk)
    table = desk.cluster.table
    node = table.nodes[NodeId("worker_0")]
    word = m.Ready(request_id=first.request(), generation=first.generation, step=1, past=past(0, 10))

    [said] = room.hear(table, node, word)

    assert isinstance(said, e.Say)
    assert said.warning
    assert "it counts nowhere in this job" in said.text
    assert room.hear(table, node, msgspec.structs.replace(word, past=None)) == []


# --- a scheduler that is asked to ----------------------------------------------------------------------------------------


def test_it_takes_the_job_up_with_its_ranks_its_numbers_and_its_newest_common_step() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    one, other = come(desk, past(1, 10, 20, generation=4), past(0, 10, 20, 30, generation=4))

    plans = [worker.last(m.Rollback) for worker in (one, other)]
    assert [(plan.rank, plan.step, plan.path) for plan in plans] == [(1, 20, "1/20"), (0, 20, "0/20")]
    assert {(plan.job, plan.run, plan.generation, plan.incarnation) for plan in plans} == {(OLD, 1, 5, 4)}
    [job] = desk.row(JobRecord)
    assert (job.job, job.state, job.generation, job.scheduler_incarnation) == (OLD, JobState.RUNNING, 5, 6)
    assert EventKind.STORE_REBUILT in desk.kinds()
    assert {(row.node_id, row.rank, row.incarnation) for row in desk.row(NodeRecord)} == {
        ("worker_0", 1, 4),
        ("worker_1", 0, 4),
    }

    desk.restart()
    worker = Worker(desk, "worker_0", job=OLD)
    worker.token, worker.incarnation, worker.generation = one.token, Incarnation(4), Generation(5)
    answer = worker.register()
    assert isinstance(answer, m.Admitted)
    assert (answer.resumed, answer.job, answer.rank) == (True, OLD, 1)


def test_living_workers_are_let_in_to_tell() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    workers = [Worker(desk, f"worker_{number}", job=OLD) for number in range(2)]
    for rank, worker in enumerate(workers):
        worker.generation = Generation(4)
        assert isinstance(worker.register(), m.Admitted)
        assert worker.last(m.Interrupt).generation == 4, "who trains is told to stop"
        ready(worker, past(rank, 10, generation=4))
    assert workers[0].last(m.Rollback).step == 10


def test_who_knows_nothing_takes_the_rank_that_is_free_and_the_job_stops_rather_than_begin_anew() -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    come(desk, None, past(0, 10))

    [job] = desk.row(JobRecord)
    assert (job.job, job.state) == (OLD, JobState.FAILED)
    assert "no step is held by all 2 ranks" in job.reason
    assert EventKind.STORE_REBUILT in desk.kinds()
    assert {(row.node_id, row.rank) for row in desk.row(NodeRecord)} == {("worker_0", 1), ("worker_1", 0)}
    assert {row.state for row in desk.row(CheckpointRecord)} == {CheckpointState.COMMITTED}


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
def test_what_does_not_fit_together_ends_it_by_name(pasts: tuple[m.Past, m.Past], why: str) -> None:
    desk = Desk(Rules(worker_count=2, rebuild_store=True))
    come(desk, *pasts)
    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"
    assert why in desk.exit.reason
    assert desk.row(JobRecord)[0].job == "job"


def test_a_store_that_was_there_and_that_nobody_remembers_is_no_new_job() -> None:
    rules = Rules(worker_count=2, rebuild_store=True)
    desk = Desk(rules)
    job = msgspec.structs.replace(new_job("new", rules), reason=room.REBUILDING)
    desk.cluster = Cluster(next_life(job), rules)
    come(desk, None, None)
    assert desk.exit is not None
    assert desk.exit.code == "STORE_LOST"
    assert "no worker that came knows anything of it" in desk.exit.reason


# --- a store that was rebuilt from files ---------------------------------------------------------------------------------


def _rebuilt_store(desk: Desk, tokens: dict[str, str], generation: int = 4) -> None:
    """As scheduler/rebuild.py writes it."""
    rows: list[Record] = [
        msgspec.structs.replace(
            new_job(OLD, desk.rules), generation=Generation(generation), reason=room.REBUILDING
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
    assert desk.cluster.table.job.state is JobState.FORMING

    desk = Desk(Rules(worker_count=2, topology_timeout_ms=1_000))
    _rebuilt_store(desk, {"a": "t-a", "b": "t-b"})
    desk.at(2_000)
    desk.restart()
    assert desk.cluster.table.job.state is JobState.INTERRUPTED


def test_a_worker_that_was_told_a_generation_which_the_store_has_lost_stops() -> None:
    desk = Desk(Rules(worker_count=2))
    one, other = full_house(desk)
    one.die()
    one.generation = Generation(3)
    one.register()

    assert one.last(m.Interrupt).generation == 3
    assert other.last(m.Interrupt).generation == 1
    assert "was told generation 3, which the store has lost" in desk.row(JobRecord)[0].reason


# --- the worker ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_noted_as_a_scheduler_would_store_it() -> None:
    pocket = Pocket().training()
    [noted] = [one for one in pocket.got(e.Persist) if one.records]
    job, node, generation = noted.records
    assert isinstance(job, JobRecord)
    assert isinstance(node, NodeRecord)
    assert isinstance(generation, GenerationRecord)
    assert (job.job, job.worker_count, job.generation) == ("job", 2, 1)
    assert (node.node_id, node.rank, node.token_digest) == ("worker_0", 1, token_digest("t"))
    assert (generation.generation, generation.step) == (1, 0)


def test_a_worker_of_a_job_says_so_when_it_registers_and_what_it_knows_when_it_is_asked_by_another() -> None:
    pocket = Pocket().training()
    pocket.hear(m.Interrupt(generation=Generation(1), reason="why"))
    pocket.feel(s.TrainingStopped(Generation(1), 5))
    assert [look.past for look in pocket.got(e.FindCheckpoints)] == [None]
    pocket.feel(s.CheckpointsFound(RequestId("f"), ()))
    pocket.hear(plan(2))
    pocket.reconnect()
    [register] = pocket.told(m.Register)
    assert (register.job, register.generation) == ("job", 2)

    pocket.hear(m.Refused(request_id=RequestId("r"), code="UNKNOWN_TOKEN", reason="", retry_after_ms=0))
    pocket.reconnect()
    pocket.hear(
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
    pocket.feel(s.TrainingStopped(Generation(2), 9))
    [look] = pocket.got(e.FindCheckpoints)
    assert look.past is not None
    assert (look.job, look.past.job, look.past.rank, look.past.generation) == ("new", "job", 1, 2)
    assert [one.generation for one in look.past.began] == [1, 2]
    known = msgspec.structs.replace(look.past, held=(checkpoint(5),))
    pocket.feel(s.CheckpointsFound(RequestId("g"), (), past=known))
    [ready] = pocket.told(m.Ready)
    assert ready.past == known

    pocket.hear(msgspec.structs.replace(plan(3), job="job", incarnation=Incarnation(2), run=RunId(4)))
    assert pocket.member.admitted is not None
    assert (pocket.member.admitted.job, pocket.member.admitted.run) == ("job", 4)
    assert pocket.member.admitted.incarnation == 2
    assert pocket.member.memory.past is not None
    assert [one.generation for one in pocket.member.memory.past.began] == [3], "another run"


def test_a_new_scheduler_that_repeats_its_answer_is_not_taken_for_the_one_before() -> None:
    """Its first answer was lost on the way: the repeat says `resumed`, and the job is another one all the same."""
    pocket = Pocket().training()
    pocket.feel(s.TrainingStopped(Generation(1), 5))
    pocket.feel(s.CheckpointsFound(RequestId("f"), (checkpoint(5),)))
    assert pocket.member.admitted is not None
    pocket.reconnect()
    pocket.hear(msgspec.structs.replace(pocket.member.admitted, job="new", resumed=True))

    [look] = pocket.got(e.FindCheckpoints)
    assert look.job == "new"
    assert look.past is not None
    assert pocket.told(m.Ready) == [], "it told the new job what it holds of the old one"


def test_what_a_process_remembers_and_what_its_store_holds_are_joined() -> None:
    memory = past(0, 20, generation=3, began=(began(3, 20),))
    store = past(0, 10, generation=2, began=(began(1, 0), began(2, 10)), saved_step=30)

    both = joined(memory, store)

    assert [one.generation for one in both.began] == [1, 2, 3]
    assert (both.generation, both.saved_step) == (3, 30)
    newer = msgspec.structs.replace(store, incarnation=Incarnation(8), generation=Generation(9))
    assert (joined(memory, newer).incarnation, joined(memory, newer).generation) == (8, 9), (
        "a newer life wrote it"
    )
    assert joined(memory, None) == memory
    assert joined(memory, msgspec.structs.replace(store, run=RunId(2))) == memory


def test_a_store_that_this_release_cannot_read_ends_the_worker_by_its_code() -> None:
    pocket = Pocket().admitted()
    pocket.feel(s.StoreRefused(RequestId("l"), "STORE_VERSION", "written by a newer release"))
    [leave] = pocket.told(m.Leave)
    assert leave.reason == "written by a newer release"
    pocket.hear(m.Received(request_id=RequestId("l")))
    assert pocket.got(e.Exit) == [e.Exit("STORE_VERSION", "written by a newer release")]


def test_a_workers_rows_become_what_it_knows() -> None:
    pocket = Pocket().training()
    [noted] = [one for one in pocket.got(e.Persist) if one.records]
    job, node, generation = noted.records
    assert isinstance(job, JobRecord)
    assert isinstance(node, NodeRecord)
    assert isinstance(generation, GenerationRecord)
    older = msgspec.structs.replace(generation, run=RunId(0))
    known = rebuild.past_of(job, msgspec.structs.replace(node, rank=None), (older, generation), ())
    assert (known.rank, known.saved_step, len(known.began)) == (0, 0, 1)
    assert rebuild.past_of(job, node, (), ()).rank == 1
