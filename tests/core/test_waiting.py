"""Who was refused for now stays connected, and is told at once when its time has come."""

from __future__ import annotations

import pytest

from recovery.core import messages as m
from recovery.core.ids import Incarnation, NodeId, RequestId
from recovery.core.records import EventKind, NodeRecord, NodeState
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import WaitingTimer
from recovery.core.scheduler.refused import BESIDE_SLOTS
from recovery.core.scheduler.stimuli import ProcessGone
from tests.core.desk import Desk, Worker, begin, running_workers
from tests.core.standbys import answer


@pytest.fixture
def desk() -> Desk:
    return Desk(Rules(worker_count=2, rejoin_window_ms=0))


def waiting(desk: Desk, node_id: str = "worker_0", **fields: object) -> Worker:
    """A successor that came too early, and stays."""
    one = Worker(desk, node_id, **fields)
    one.stays = True
    answer = one.register()
    assert isinstance(answer, m.Refused)
    assert answer.retry_after_ms
    return one


def admissions(desk: Desk) -> list[tuple[str | None, int | None]]:
    return [
        (event.node_id, event.incarnation) for event in desk.events if event.kind is EventKind.NODE_ADMITTED
    ]


# --- when its time comes -----------------------------------------------------------------------------------------------------


def test_who_came_before_the_death_was_noticed_is_let_in_when_it_is(desk: Desk) -> None:
    first, _ = running_workers(desk)
    early = waiting(desk)
    assert early.connection in desk.kept
    assert early.connection not in desk.closed
    desk.at(40)
    first.die()
    assert early.hears(m.Admitted) == 0, "its holder may come back within the grace"
    desk.at(540)
    assert (early.told().incarnation, early.told().rank) == (2, 0)


def test_the_same_while_the_world_forms_and_no_generation_ends(desk: Desk) -> None:
    first = Worker(desk, "worker_0")
    first.register()
    early = waiting(desk)
    first.die()
    desk.at(500)
    assert early.told().incarnation == 2


def test_it_is_let_in_with_one_write_and_with_the_token_that_nobody_else_has(desk: Desk) -> None:
    first, second = running_workers(desk)
    early = waiting(desk)
    first.die()
    desk.at(500)
    admitted = early.told()
    assert admitted.token not in (first.token, second.token)
    early.ready()
    second.ready()
    assert early.follow().generation == 2
    early.die()
    assert isinstance(early.register(), m.Admitted), "it comes back by that token"


def test_who_waits_out_a_window_is_told_when_it_is_over() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = running_workers(desk)
    first.die()
    desk.at(600)
    early = waiting(desk)
    for now in range(3_000, 30_000, 3_000):
        desk.at(now)
        second.beat()
    desk.at(29_999)
    assert not early.hears(m.Admitted)
    desk.at(30_000)
    assert early.told().incarnation == 2


def test_a_process_that_asks_on_another_connection_waits_no_more_on_the_one_before() -> None:
    """That one may be dead; what it has waited for comes while it is let in on the other one."""
    desk = Desk(Rules(worker_count=2))
    first, second = running_workers(desk)
    first.die()
    desk.at(600)
    early = waiting(desk)
    before, secret = early.connection, early.registration.request_secret
    for now in range(3_000, 30_000, 3_000):
        desk.at(now)
        second.beat()
    # The scheduler's process was stopped: the message comes before the timer.
    desk.now = 30_000
    assert isinstance(early.register(request=RequestId(secret or "")), m.Admitted)
    desk.at(30_001)
    assert early.connection not in desk.closed
    assert before in desk.closed


def test_one_of_several_windows_follows_the_other() -> None:
    desk = Desk(Rules(worker_count=3))
    first, second, third = running_workers(desk, "worker_0", "worker_1", "worker_2")
    first.die()
    desk.at(1_000)
    second.die()
    desk.at(2_000)
    later, earlier = waiting(desk, "worker_1"), waiting(desk, "worker_0")
    for now in range(3_000, 30_000, 3_000):
        desk.at(now)
        third.beat()
    desk.at(30_000)
    assert earlier.told().incarnation == 2
    assert not later.hears(m.Admitted)
    desk.at(31_000)
    assert later.told().incarnation == 2


def test_a_holder_that_leaves_makes_room_at_once(desk: Desk) -> None:
    first, _ = running_workers(desk)
    early = waiting(desk)
    first.send(m.Leave(request_id=first.request(), reason="SIGTERM"))
    assert early.told().incarnation == 2


def test_a_holder_that_is_lost_with_its_window_open_tells_how_long_it_still_takes() -> None:
    desk = Desk(Rules(worker_count=2))
    first, _ = running_workers(desk)
    early = waiting(desk)
    first.die()
    desk.at(500)
    refused = early.last(m.Refused)
    assert (refused.code, refused.retry_after_ms) == ("REJOIN_WINDOW", 29_500)
    assert early.connection not in desk.closed
    codes = [event.reason.split(":")[0] for event in desk.events if event.kind is EventKind.NODE_REFUSED]
    assert codes == ["NODE_ALIVE", "REJOIN_WINDOW"], "each once"


def test_who_waits_for_a_rank_is_let_in_when_the_holder_is_lost() -> None:
    desk = Desk(Rules(worker_count=2))
    first, _ = running_workers(desk)
    taker = waiting(desk, "worker_0.2", replaces=NodeId("worker_0"))
    first.die()
    desk.at(500)
    assert taker.told().standby


def test_the_end_of_the_job_is_told_to_who_waits(desk: Desk) -> None:
    first, second = running_workers(desk)
    early = waiting(desk)
    first.done()
    second.done()
    assert early.last(m.JobEnded).outcome is m.JobOutcome.FINISHED


def test_what_happens_to_others_disturbs_nobody_who_waits(desk: Desk) -> None:
    _, second = running_workers(desk)
    early = waiting(desk)
    second.beat()
    second.save(10)
    assert early.hears(m.Refused) == 1


# --- it asks again by itself, goes, and comes ------------------------------------------------------------------------------


def ask_again(one: Worker) -> list[m.FromScheduler]:
    """Its own timer has fired: the same registration on the same connection."""
    return one.send(one.registration)


def test_asking_again_on_the_same_connection_is_answered_there(desk: Desk) -> None:
    running_workers(desk)
    early = waiting(desk)
    [again] = ask_again(early)
    assert isinstance(again, m.Refused)
    assert early.connection not in desk.closed


def test_who_asks_again_while_it_is_told_stays_in(desk: Desk) -> None:
    first, _ = running_workers(desk)
    early = waiting(desk)
    first.die()
    desk.at(500)
    assert ask_again(early) == []
    assert early.connection not in desk.closed
    assert admissions(desk)[-1] == ("worker_0", 2)
    early.told()
    early.beat()
    assert early.hears(m.HeartbeatAck) == 1


def test_another_registration_on_the_connection_of_a_member_closes_it(desk: Desk) -> None:
    first, _ = running_workers(desk)
    first.send(Worker(desk, "worker_0").made())
    assert first.connection in desk.closed


def test_who_has_hung_up_is_not_let_in(desk: Desk) -> None:
    first, _ = running_workers(desk)
    early = waiting(desk)
    early.die()
    first.die()
    desk.at(500)
    assert admissions(desk)[2:] == []
    [node] = [row for row in desk.row(NodeRecord) if row.node_id == "worker_0"]
    assert node.state is NodeState.LOST


def test_of_two_who_wait_for_one_id_the_later_waits_and_the_other_is_closed(desk: Desk) -> None:
    first, _ = running_workers(desk)
    one, other = waiting(desk), waiting(desk)
    assert one.connection in desk.closed
    assert other.connection not in desk.closed
    desk.lose(one.connection)
    first.die()
    desk.at(500)
    assert other.told().incarnation == 2
    assert not one.hears(m.Admitted)


def test_one_connection_waits_for_one_id(desk: Desk) -> None:
    first, second = running_workers(desk)
    early = waiting(desk)
    early.send(Worker(desk, "worker_1").made())
    first.die()
    desk.at(500)
    assert not early.hears(m.Admitted)
    second.die()
    desk.at(1_000)
    assert admissions(desk)[-1] == ("worker_1", 2)


def test_a_scheduler_that_restarts_forgets_who_waited(desk: Desk) -> None:
    running_workers(desk)
    early = waiting(desk)
    desk.restart()
    desk.at(31_000)
    assert not early.hears(m.Admitted)


# --- what it may cost --------------------------------------------------------------------------------------------------------


def test_who_waits_is_bounded_and_who_came_first_stays() -> None:
    desk = Desk(Rules(worker_count=2))
    first, _ = running_workers(desk)
    places = 2 + BESIDE_SLOTS
    takers = [waiting(desk, f"worker_0.{number}", replaces=NodeId("worker_0")) for number in range(places)]
    beyond = waiting(desk, "worker_0.x", replaces=NodeId("worker_0"))
    assert beyond.connection in desk.closed
    assert beyond.connection not in desk.kept
    assert not any(taker.connection in desk.closed for taker in takers)
    first.die()
    desk.at(500)
    assert takers[0].told().standby


def test_without_anybody_whose_time_alone_comes_no_timer_runs(desk: Desk) -> None:
    running_workers(desk)
    waiting(desk)
    assert WaitingTimer() not in desk.timers


def test_a_timer_that_is_late_means_nothing_when_nobody_waits() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = running_workers(desk)
    first.die()
    desk.at(600)
    early = waiting(desk)
    early.die()
    assert WaitingTimer() in desk.timers
    for now in range(3_000, 33_000, 3_000):
        desk.at(now)
        second.beat()
    assert admissions(desk)[2:] == []


def test_who_can_never_be_let_in_is_closed_as_before(desk: Desk) -> None:
    running_workers(desk)
    extra = Worker(desk, "worker_7")
    extra.stays = True
    answer = extra.register()
    assert isinstance(answer, m.Refused)
    assert answer.retry_after_ms is None
    assert extra.connection in desk.closed


def test_proven_death_of_who_holds_their_places_wakes_the_first_ids_that_wait_for_them() -> None:
    desk = Desk(Rules(worker_count=2, rejoin_window_ms=0))
    training = running_workers(desk)
    for number in (0, 1):
        training[number].die()
        desk.at(desk.now + 600)
        process = m.ProcessIdentity(boot_id="boot", pid_namespace=7, start_ticks=number)
        fresh = Worker(desk, f"worker_{number}.2", replaces=f"worker_{number}", process=process)
        fresh.register()
        answer(fresh, of=f"worker_{number}", rank=number)
        training[1 - number].ready()
        training[number] = fresh
        for one in training:
            one.follow()
    # The host's power fails, with the scheduler on it. Its launcher is started again.
    desk.restart()
    again = [Worker(desk, f"worker_{number}") for number in (0, 1)]
    for one in again:
        one.stays = True
        refused = one.register()
        assert isinstance(refused, m.Refused)
        assert refused.code == "NODE_ALIVE"
    desk.handle(ProcessGone(NodeId("worker_0.2"), Incarnation(1)))
    assert [one.hears(m.Admitted) for one in again] == [1, 0]
    desk.handle(ProcessGone(NodeId("worker_1.2"), Incarnation(1)))
    assert [one.hears(m.Admitted) for one in again] == [1, 1]


def test_a_death_that_is_proven_behind_the_loss_lets_in_who_waits_for_the_id() -> None:
    desk = Desk(Rules(worker_count=2, rejoin_on_proof=True))
    process = m.ProcessIdentity(boot_id="boot", pid_namespace=7, start_ticks=1)
    first = Worker(desk, "worker_0", process=process)
    begin((first, Worker(desk, "worker_1", process=process)))
    first.die()
    desk.at(500)
    late = waiting(desk)
    assert late.last(m.Refused).code == "REJOIN_WINDOW"
    desk.handle(ProcessGone(NodeId("worker_0"), Incarnation(1)))
    assert late.told().incarnation == 2
