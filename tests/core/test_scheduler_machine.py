from __future__ import annotations

from typing import Any

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import ConnectionId, Generation, RequestId, ResumeToken
from recovery.core.records import (
    CheckpointRecord,
    CheckpointState,
    EventKind,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.refused import NAMED_MAX, PERIOD_MS
from tests.core.desk import Desk, Worker, checkpoint, registration, running_workers


def rules(**changes: Any) -> Rules:
    return Rules(**{"worker_count": 2, **changes})


@pytest.fixture
def desk() -> Desk:
    return Desk(rules())


def job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


def node(desk: Desk, name: str) -> NodeRecord:
    return next(row for row in desk.row(NodeRecord) if row.node_id == name)


def refusal(answer: m.FromScheduler) -> str:
    assert isinstance(answer, m.Refused), answer
    return answer.code


# --- forming ------------------------------------------------------------------------------------------------------------


def test_when_all_are_ready_they_are_ranked_and_start_at_step_zero(desk: Desk) -> None:
    first, second = running_workers(desk, "worker_10", "worker_2")
    assert (first.follow().rank, second.follow().rank) == (1, 0)
    assert first.follow().step == 0
    assert job(desk).state is JobState.RUNNING
    assert EventKind.RANKS_ASSIGNED in desk.kinds()


def test_an_extra_worker_is_refused_for_good(desk: Desk) -> None:
    running_workers(desk)
    answer = Worker(desk, "worker_9").register()
    assert isinstance(answer, m.Refused)
    assert (answer.code, answer.retry_after_ms) == ("WORLD_FULL", None)


def test_a_node_lost_while_forming_gives_its_slot_free_but_not_its_id() -> None:
    desk = Desk(rules(lease_ms=60_000))
    dead = Worker(desk, "worker_0")
    dead.register()
    dead.die()
    desk.at(600)
    assert refusal(Worker(desk, "worker_0").register()) == "REJOIN_WINDOW"
    for name in ("worker_1", "worker_2"):
        assert isinstance(Worker(desk, name).register(), m.Admitted)
    assert refusal(dead.register()) == "FENCED"
    desk.at(40_000)
    assert refusal(Worker(desk, "worker_0").register()) == "WORLD_FULL"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"protocol": 99}, "PROTOCOL_VERSION"),
        ({"worker_count": 3}, "JOB_MISMATCH"),
        ({"server_count": 1}, "JOB_MISMATCH"),
        ({"recovery_enabled": False}, "JOB_MISMATCH"),
    ],
)
def test_who_is_of_another_job_is_refused(desk: Desk, fields: dict[str, object], code: str) -> None:
    assert refusal(Worker(desk, "worker_0", **fields).register()) == code


def test_an_integer_id_beyond_the_world_is_refused(desk: Desk) -> None:
    assert refusal(Worker(desk, "5").register()) == "NODE_ID_INVALID"


def test_an_id_of_another_role_is_refused() -> None:
    desk = Desk(rules(server_count=1))
    Worker(desk, "same").register()
    assert refusal(Worker(desk, "same", role=m.Role.SERVER).register()) == "NODE_ID_INVALID"


def test_servers_are_waited_for_and_their_loss_interrupts_nobody() -> None:
    desk = Desk(rules(server_count=1))
    workers = [Worker(desk, f"worker_{number}") for number in range(2)]
    for worker in workers:
        worker.register()
        worker.ready()
    assert job(desk).state is JobState.FORMING
    server = Worker(desk, "server_0", role=m.Role.SERVER)
    server.register()
    assert job(desk).state is JobState.RUNNING
    assert node(desk, "server_0").rank == 0
    server.die()
    desk.at(600)
    assert node(desk, "server_0").state is NodeState.LOST
    assert job(desk).state is JobState.RUNNING
    desk.at(31_000)
    assert isinstance(Worker(desk, "server_0", role=m.Role.SERVER).register(), m.Admitted)


def test_too_few_workers_fail_the_job_with_their_names() -> None:
    desk = Desk(rules(topology_timeout_ms=5_000, lease_ms=60_000))
    worker = Worker(desk, "worker_1")
    worker.register()
    desk.at(4_999)
    assert job(desk).state is JobState.FORMING
    desk.at(5_000)
    ended = worker.last(m.JobEnded)
    assert "1 of 2 workers are here after 5 s" in ended.reason
    assert "1 that never registered" in ended.reason
    desk.at(10_000)
    assert desk.exit is not None
    assert desk.exit.code == "WAIT_TIMEOUT"


def test_without_a_deadline_all_ranks_are_waited_for_for_ever() -> None:
    desk = Desk(rules(topology_timeout_ms=None))
    desk.at(10**9)
    assert job(desk).state is JobState.FORMING


# --- suspect, lost, window ------------------------------------------------------------------------------------------------


def test_a_dropped_connection_costs_nothing_within_the_grace(desk: Desk) -> None:
    worker, other = running_workers(desk)
    worker.die()
    assert node(desk, "worker_0").state is NodeState.SUSPECT
    desk.at(499)
    assert isinstance(worker.register(), m.Admitted)
    desk.at(5_000)
    assert job(desk).state is JobState.RUNNING
    assert not other.hears(m.Interrupt)
    assert worker.incarnation == 1


def test_a_lost_id_is_refused_to_the_millisecond_and_tries_change_nothing(desk: Desk) -> None:
    worker, other = running_workers(desk)
    desk.at(1_000)
    worker.die()
    desk.at(1_500)
    assert other.last(m.Interrupt).reason == "worker_0 lost: connection closed"
    other.ready()
    for at, left in ((2_000, 29_000), (30_999, 1)):
        desk.at(at)
        other.beat()
        answer = Worker(desk, "worker_0").register()
        assert isinstance(answer, m.Refused)
        assert (answer.code, answer.retry_after_ms) == ("REJOIN_WINDOW", left)
    desk.at(31_000)
    again = Worker(desk, "worker_0")
    admitted = again.register()
    assert isinstance(admitted, m.Admitted)
    assert (admitted.incarnation, admitted.rank, admitted.resumed) == (2, 0, False)
    assert desk.kinds().count(EventKind.NODE_REFUSED) == 1
    again.ready()
    assert (again.follow().generation, again.follow().because) == (2, "worker_0 lost: connection closed")


def test_a_living_id_is_refused_and_its_holder_untouched(desk: Desk) -> None:
    running_workers(desk)
    heard = desk.machine.state.nodes[next(iter(desk.machine.state.nodes))].heard_ms
    desk.at(2_000)
    answer = Worker(desk, "worker_0").register()
    assert refusal(answer) == "NODE_ALIVE"
    assert desk.machine.state.nodes[next(iter(desk.machine.state.nodes))].heard_ms == heard


def test_a_silent_node_is_lost_after_its_lease_and_resumes_into_the_next_generation(desk: Desk) -> None:
    worker, other = running_workers(desk)
    for at in range(1_000, 30_000, 1_000):
        desk.at(at)
        other.beat()
    desk.at(30_000)
    assert node(desk, "worker_0").state is NodeState.LOST
    assert worker.connection in desk.closed
    # Fenced off: no effect.
    assert worker.send(m.Heartbeat(sequence=1, generation=Generation(1), step=5)) == []
    other.ready()
    assert isinstance(worker.register(), m.Admitted)
    assert worker.incarnation == 1
    assert worker.hears(m.Interrupt)
    worker.ready()
    assert worker.follow().generation == 2


def test_without_heartbeats_silence_means_nothing() -> None:
    desk = Desk(rules(heartbeat_enabled=False))
    running_workers(desk)
    desk.at(10**7)
    assert job(desk).state is JobState.RUNNING


def test_a_stopped_process_is_fenced_once_the_next_is_in(desk: Desk) -> None:
    worker, other = running_workers(desk)
    for at in range(1_000, 62_000, 1_000):
        desk.at(at)
        other.beat()
    assert isinstance(Worker(desk, "worker_0").register(), m.Admitted)
    assert refusal(worker.register()) == "FENCED"


def test_a_repeat_of_an_admission_whose_answer_was_lost_finds_the_same_incarnation(desk: Desk) -> None:
    worker = Worker(desk, "worker_0")
    request = RequestId("the same")
    worker.register(request=request)
    worker.die()
    again = worker.register(request=request, keep_token=False)
    assert isinstance(again, m.Admitted)
    assert (again.incarnation, again.resumed) == (1, True)


@pytest.mark.parametrize("secret", [None, "guessed", ""])
def test_who_knows_only_the_id_of_an_admission_is_not_its_holder(desk: Desk, secret: str | None) -> None:
    worker = Worker(desk, "worker_0")
    worker.register()
    stolen = msgspec.structs.replace(
        worker.registration, request_secret=None if secret is None else ResumeToken(secret)
    )
    [refused] = desk.say(desk.connect(), stolen)
    assert isinstance(refused, m.Refused)
    assert refused.code == "NODE_ALIVE"
    assert worker.connection not in desk.closed
    worker.die()
    desk.at(desk.now + 10)
    [refused] = desk.say(desk.connect(), stolen)
    assert isinstance(refused, m.Refused)
    assert isinstance(worker.register(), m.Admitted), "the holder itself has its token"


def test_a_newer_connection_of_the_same_incarnation_replaces_the_older(desk: Desk) -> None:
    worker, _ = running_workers(desk)
    older = worker.connection
    worker.register()
    assert older in desk.closed
    desk.lose(older)
    assert node(desk, "worker_0").state is NodeState.LIVE


def test_a_foreign_token_registers_again(desk: Desk) -> None:
    worker = Worker(desk, "worker_0")
    worker.token = ResumeToken("of another store")
    answer = worker.register()
    assert isinstance(answer, m.Refused)
    assert (answer.code, answer.retry_after_ms) == ("UNKNOWN_TOKEN", 0)


def test_strangers_and_double_registrations_are_disconnected(desk: Desk) -> None:
    connection = desk.connect()
    assert desk.say(connection, m.Heartbeat(sequence=1, generation=Generation(0), step=0)) == []
    assert connection in desk.closed
    worker = Worker(desk, "worker_0")
    worker.register()
    desk.say(worker.connection, registration(request_id=RequestId("x"), node_id=worker.node_id))
    assert worker.connection in desk.closed
    desk.lose(ConnectionId(999))


def test_many_refused_ids_are_remembered_within_a_bound(desk: Desk) -> None:
    running_workers(desk)
    for number in range(1_100):
        Worker(desk, f"extra_{number}").register()
    assert desk.kinds().count(EventKind.NODE_REFUSED) == NAMED_MAX
    desk.at(desk.now + PERIOD_MS)
    Worker(desk, "extra_0").register()
    [*_, last] = [event for event in desk.events if event.kind is EventKind.NODE_REFUSED]
    assert f"({1_100 - NAMED_MAX} other names from 10.0.0.1 were refused" in last.reason


# --- checkpoints and plans --------------------------------------------------------------------------------------------------


def test_a_step_is_committed_when_every_rank_holds_it(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.save(10)
    assert not first.hears(m.Committed)
    second.save(10)
    assert first.last(m.Committed).step == second.last(m.Committed).step == 10
    states = {row.state for row in desk.row(CheckpointRecord) if row.step == 10}
    assert states == {CheckpointState.COMMITTED}


def test_a_report_sent_twice_has_one_effect_and_the_same_answer(desk: Desk) -> None:
    first, second = running_workers(desk)
    second.save(10)
    report = m.CheckpointReport(request_id=RequestId("r"), checkpoint=checkpoint(10, path="a"))
    first.send(report)
    answers = first.send(report)
    assert [type(answer) for answer in answers] == [m.Received]
    assert desk.kinds().count(EventKind.CHECKPOINT_COMMITTED) == 1


def test_everybody_goes_back_to_the_newest_common_step(desk: Desk) -> None:
    first, second = running_workers(desk)
    for step in (10, 20):
        first.save(step)
    held = second.save(10)
    second.die()
    desk.at(31_000 - 1_000)
    desk.at(31_000)
    first.register()
    first.ready(checkpoint(10, path="worker_0/10"), checkpoint(20, path="worker_0/20"))
    again = Worker(desk, "worker_1")
    again.register()
    again.ready(held)
    plan = again.follow()
    assert (plan.step, plan.epoch, plan.step_in_epoch, plan.path) == (10, 1, 10, "worker_1/10")
    first.follow()
    # what was saved beyond the plan belongs to a suffix that is done again
    first.send(
        m.CheckpointReport(
            request_id=first.request(), checkpoint=checkpoint(20, generation=1, path="worker_0/20")
        )
    )
    again.save(20)
    assert desk.machine.state.checkpoints.committed_step == 10
    first.save(20)
    assert desk.machine.state.checkpoints.committed_step == 20


def test_a_bad_file_sends_all_to_the_next_older_step(desk: Desk) -> None:
    first, second = running_workers(desk)
    for step in (10, 20):
        first.save(step)
        second.save(step)
    first.send(
        m.CheckpointInvalid(
            request_id=first.request(), generation=first.generation, step=20, path="p", reason="sha256"
        )
    )
    assert second.hears(m.Interrupt)
    held = [checkpoint(step, path=f"worker_0/{step}") for step in (10, 20)]
    first.ready(*held)
    second.ready(*(checkpoint(step, path=f"worker_1/{step}") for step in (10, 20)))
    assert first.follow().step == second.follow().step == 10
    bad = [row for row in desk.row(CheckpointRecord) if row.state is CheckpointState.INVALID]
    assert [(row.rank, row.step) for row in bad] == [(0, 20)]
    first.save(30)
    desk.restart()
    # reporting the bad file again changes nothing
    first.register()
    first.send(m.CheckpointReport(request_id=first.request(), checkpoint=held[1]))
    assert desk.machine.state.checkpoints.committed_step == 10
    first.send(
        m.CheckpointInvalid(
            request_id=first.request(), generation=first.generation, step=77, path="p", reason="gone"
        )
    )


def test_ranks_that_have_not_taken_the_same_batches_commit_nothing_and_are_named(desk: Desk) -> None:
    first, second = running_workers(desk)
    first.save(10)
    second.save(10, epoch=2)

    [event] = [one for one in desk.events if one.kind is EventKind.CHECKPOINT_NOT_COMMON]
    assert event.step == 10
    assert "rank 0 at step 10 of epoch 1, rank 1 at step 10 of epoch 2" in event.reason
    assert EventKind.CHECKPOINT_COMMITTED not in desk.kinds()


@pytest.mark.parametrize("allowed", [False, True])
def test_no_common_step_stops_the_job_unless_zero_is_allowed(allowed: bool) -> None:
    desk = Desk(rules(allow_restart_from_zero=allowed))
    first, second = running_workers(desk)
    held = first.save(10)
    second.save(10)
    first.ready(held)
    # Its disk was lost.
    second.ready()
    if allowed:
        assert first.follow().step == 0
        return
    assert "no step is held by all 2 ranks (rank 0: 10; rank 1: none)" in first.last(m.JobEnded).reason
    assert job(desk).state is JobState.FAILED
