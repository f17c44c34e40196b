"""What follows when a process is known to have ended, and that a wrong word takes nobody's place away."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Incarnation, NodeId
from recovery.core.records import (
    EventKind,
    EventRecord,
    GenerationRecord,
    IncarnationRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    ProcessRecord,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import WatchProcess
from recovery.core.scheduler.stimuli import ProcessGone
from tests.core.desk import Desk, Worker, begin

KILLED = "killed by SIGKILL"
ENDED = "its process (pid 1) has ended"
HERE = m.ProcessIdentity(boot_id="boot", pid_namespace=7, start_ticks=100)
OTHERS = (
    msgspec.structs.replace(HERE, boot_id="another boot"),
    msgspec.structs.replace(HERE, pid_namespace=8),
    msgspec.structs.replace(HERE, start_ticks=101),
)


def formed(desk: Desk, process: m.ProcessIdentity | None = HERE) -> tuple[Worker, Worker]:
    first, second = Worker(desk, "worker_0", process=process), Worker(desk, "worker_1", process=process)
    begin((first, second))
    return first, second


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2))


@pytest.fixture
def proof() -> Desk:
    return Desk(Rules(worker_count=2, rejoin_on_proof=True))


def node(desk: Desk, node_id: str = "worker_0") -> NodeRecord:
    return next(row for row in desk.row(NodeRecord) if row.node_id == node_id)


def gone(desk: Desk, node_id: str = "worker_0", incarnation: int = 1) -> None:
    desk.handle(ProcessGone(NodeId(node_id), Incarnation(incarnation)))


def see_exit(desk: Desk, process: m.ProcessIdentity | None = HERE, *, gives_up: bool = False) -> None:
    exited = m.Exited(node_id=NodeId("worker_0"), pid=1, reason=KILLED, process=process, gives_up=gives_up)
    desk.say(desk.connect(), exited)


def events(desk: Desk, kind: EventKind) -> list[EventRecord]:
    return [event for event in desk.events if event.kind is kind]


# --- the scheduler's own host ----------------------------------------------------------------------------------------------


def test_the_identity_of_a_process_is_stored_with_its_admission(desk: Desk) -> None:
    formed(desk)
    assert [(row.node_id, row.incarnation, row.start_ticks) for row in desk.row(ProcessRecord)] == [
        ("worker_0", 1, 100),
        ("worker_1", 1, 100),
    ]


def test_who_disconnects_is_watched_until_it_is_heard_again(desk: Desk) -> None:
    first, _ = formed(desk)
    assert desk.watched == {}
    first.die()
    watched = WatchProcess(NodeId("worker_0"), Incarnation(1), 1, HERE, "10.0.0.1")
    assert desk.watched == {"worker_0": watched}
    first.register()
    assert desk.watched == {}


def test_a_suspect_whose_process_has_ended_is_lost_at_once(desk: Desk) -> None:
    first, second = formed(desk)
    first.die()
    gone(desk)
    assert (node(desk).state, node(desk).reason) == (NodeState.LOST, ENDED)
    assert second.last(m.Interrupt).reason == f"worker_0 lost: {ENDED}"
    assert desk.watched == {}, "nothing more can be learned of it"


def test_who_is_connected_is_not_lost_by_a_proof(desk: Desk) -> None:
    first, second = formed(desk)
    gone(desk)
    first.die()
    first.register()
    gone(desk)
    assert node(desk).state is NodeState.LIVE
    assert not second.hears(m.Interrupt)


@pytest.mark.parametrize(("node_id", "incarnation"), [("worker_0", 2), ("worker_7", 1)])
def test_the_end_of_another_incarnation_means_nothing(desk: Desk, node_id: str, incarnation: int) -> None:
    first, _ = formed(desk)
    first.die()
    gone(desk, node_id, incarnation)
    assert node(desk).state is NodeState.SUSPECT


def test_the_end_of_the_process_before_means_nothing_for_its_successor(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    gone(proof)
    assert isinstance(first.register(keep_token=False), m.Admitted)
    first.die()
    gone(proof)
    assert node(proof).state is NodeState.SUSPECT


def test_who_does_not_say_which_process_it_is_is_not_watched(desk: Desk) -> None:
    first, _ = formed(desk, process=None)
    first.die()
    assert desk.watched == {}
    assert desk.row(ProcessRecord) == []
    assert node(desk).state is NodeState.SUSPECT


def test_without_recovery_nobody_is_watched() -> None:
    desk = Desk(Rules(worker_count=2, recovery_enabled=False))
    first, _ = formed(desk)
    first.die()
    assert desk.watched == {}


def test_a_process_that_says_at_its_return_which_it_is_is_watched_from_then_on(desk: Desk) -> None:
    first, _ = formed(desk, process=None)
    first.die()
    again = Worker(desk, "worker_0", process=HERE)
    again.token, again.incarnation = first.token, first.incarnation
    again.register()
    again.die()
    assert desk.watched["worker_0"].process == HERE


def test_after_an_ended_job_nobody_is_lost(desk: Desk) -> None:
    first, second = formed(desk)
    first.die()
    second.raises()
    desk.say(desk.connect(), m.Exited(node_id=NodeId("worker_1"), pid=1, reason="x", gives_up=True))
    second.die()
    gone(desk)
    assert node(desk).state is NodeState.SUSPECT


# --- the scheduler was restarted too ---------------------------------------------------------------------------------------


def test_a_restarted_scheduler_watches_everybody_who_may_be_alive(desk: Desk) -> None:
    formed(desk)
    desk.restart()
    assert sorted(desk.watched) == ["worker_0", "worker_1"]


def test_after_a_restart_the_dead_are_lost_at_once_and_their_ids_wait_out_the_window(desk: Desk) -> None:
    formed(desk)
    desk.at(10_000)
    desk.restart()
    gone(desk)
    assert node(desk).state is NodeState.LOST
    answer = Worker(desk, "worker_0").register()
    assert isinstance(answer, m.Refused)
    assert (answer.code, answer.retry_after_ms) == ("REJOIN_WINDOW", 30_000)


def test_after_a_restart_only_the_newest_incarnation_is_watched(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    gone(proof)
    newer = Worker(proof, "worker_0", process=OTHERS[2])
    newer.register()
    proof.restart()
    assert proof.watched["worker_0"].process == OTHERS[2]


def test_who_is_lost_is_watched_after_a_restart_only_where_that_ends_its_window(
    desk: Desk, proof: Desk
) -> None:
    for each, watched in ((desk, ["worker_1"]), (proof, ["worker_0", "worker_1"])):
        first, _ = formed(each)
        first.die()
        each.at(600)
        each.restart()
        assert sorted(each.watched) == watched


# --- MS_REJOIN=proof -------------------------------------------------------------------------------------------------------


def test_by_default_a_proven_death_leaves_the_window_open(desk: Desk) -> None:
    first, _ = formed(desk)
    desk.at(1_000)
    first.die()
    desk.at(1_100)
    gone(desk)
    answer = first.register(keep_token=False)
    assert isinstance(answer, m.Refused)
    assert (answer.code, answer.retry_after_ms) == ("REJOIN_WINDOW", 29_900)
    [lost] = events(desk, EventKind.NODE_LOST)
    assert lost.details == ""


def test_with_rejoin_proof_a_proven_death_ends_the_window_and_says_so(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    gone(proof)
    [lost] = events(proof, EventKind.NODE_LOST)
    assert (lost.reason, lost.details) == (ENDED, "its id may return at once (MS_REJOIN=proof)")
    assert node(proof).rejoin_left_ms == 0
    assert isinstance(first.register(keep_token=False), m.Admitted)


def test_with_rejoin_proof_an_unproven_loss_leaves_the_window_open(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    proof.at(600)
    assert node(proof).state is NodeState.LOST
    answer = first.register(keep_token=False)
    assert isinstance(answer, m.Refused)
    assert answer.code == "REJOIN_WINDOW"


def test_with_rejoin_proof_a_death_that_is_proven_later_ends_the_window_then(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    proof.at(600)
    assert "worker_0" in proof.watched
    gone(proof)
    [ended] = events(proof, EventKind.PROCESS_ENDED)
    assert (ended.reason, ended.details) == (ENDED, "its id may return at once (MS_REJOIN=proof)")
    assert node(proof).rejoin_left_ms == 0
    assert proof.watched == {}
    gone(proof)
    assert len(events(proof, EventKind.PROCESS_ENDED)) == 1, "said once"
    assert isinstance(first.register(keep_token=False), m.Admitted)


def test_with_rejoin_proof_who_was_lost_by_its_lease_is_watched_too(proof: Desk) -> None:
    first, second = formed(proof)
    for now in range(1_000, 31_000, 1_000):
        proof.at(now)
        second.beat()
    assert node(proof).state is NodeState.LOST
    # Its window is over with its lease, since it was last heard 30 s ago.
    assert proof.watched == {}
    short = Desk(Rules(worker_count=2, rejoin_on_proof=True, lease_ms=10_000))
    formed(short)
    short.at(11_000)
    assert sorted(short.watched) == ["worker_0", "worker_1"]
    assert first.incarnation == 1


# --- launchers -------------------------------------------------------------------------------------------------------------


def test_a_report_that_names_the_very_process_ends_the_window_of_a_suspect(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    see_exit(proof)
    assert (node(proof).state, node(proof).reason) == (NodeState.LOST, KILLED)
    assert isinstance(first.register(keep_token=False), m.Admitted)


def test_a_report_that_came_before_the_connection_closed_counts_when_it_does(proof: Desk) -> None:
    first, _ = formed(proof)
    see_exit(proof)
    assert node(proof).state is NodeState.LIVE
    first.die()
    assert node(proof).state is NodeState.LOST
    assert isinstance(first.register(keep_token=False), m.Admitted)


def test_who_speaks_after_a_report_of_its_end_was_slandered(proof: Desk) -> None:
    first, _ = formed(proof)
    see_exit(proof)
    first.beat()
    first.die()
    answer = first.register(keep_token=False)
    assert isinstance(answer, m.Refused), "the report is no proof any more"


def test_a_report_for_a_lost_node_ends_its_window(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    proof.at(600)
    see_exit(proof)
    assert isinstance(first.register(keep_token=False), m.Admitted)


def test_a_report_without_identity_ends_no_window(proof: Desk) -> None:
    first, _ = formed(proof)
    first.die()
    see_exit(proof, process=None)
    assert node(proof).state is NodeState.LOST
    assert isinstance(first.register(keep_token=False), m.Refused)


@pytest.mark.parametrize("other", OTHERS, ids=["boot", "pid namespace", "start"])
def test_a_report_about_another_process_of_the_same_number_means_nothing(
    proof: Desk, other: m.ProcessIdentity
) -> None:
    first, _ = formed(proof)
    first.die()
    see_exit(proof, other)
    assert node(proof).state is NodeState.SUSPECT
    see_exit(proof, other, gives_up=True)
    assert not proof.exit
    proof.at(600)
    see_exit(proof, other)
    assert isinstance(first.register(keep_token=False), m.Refused)


def test_a_report_with_identity_of_who_said_none_counts_by_the_number_as_before(desk: Desk) -> None:
    first, _ = formed(desk, process=None)
    first.die()
    see_exit(desk)
    assert (node(desk).state, node(desk).reason) == (NodeState.LOST, KILLED)


def test_how_it_ended_is_told_where_only_the_end_was_known(desk: Desk) -> None:
    first, second = formed(desk)
    first.die()
    gone(desk)
    see_exit(desk)
    cause = f"worker_0 lost: {KILLED}"
    assert node(desk).reason == KILLED
    [ended] = events(desk, EventKind.PROCESS_ENDED)
    assert (ended.reason, ended.details) == (KILLED, "")
    assert next(row.ended for row in desk.row(IncarnationRecord) if row.node_id == "worker_0") == KILLED
    [job], [generation] = desk.row(JobRecord), desk.row(GenerationRecord)
    assert (job.state, job.reason, generation.ended) == (JobState.INTERRUPTED, cause, cause)
    see_exit(desk)
    assert len(events(desk, EventKind.PROCESS_ENDED)) == 1, "said once"
    assert second.hears(m.Interrupt) == 2, "sent as before, and again behind its write"


def test_how_it_ended_does_not_change_that_another_was_the_first_failure(desk: Desk) -> None:
    first, second = formed(desk)
    second.die()
    gone(desk, "worker_1")
    first.die()
    gone(desk)
    see_exit(desk)
    assert node(desk).reason == KILLED
    [job], [generation] = desk.row(JobRecord), desk.row(GenerationRecord)
    assert job.reason == generation.ended == f"worker_1 lost: {ENDED}"


def test_a_launcher_that_gives_up_names_how_it_ended(desk: Desk) -> None:
    first, second = formed(desk)
    first.die()
    gone(desk)
    see_exit(desk, gives_up=True)
    assert second.last(m.JobEnded).reason == f"worker_0: {KILLED}; it is not started again"
