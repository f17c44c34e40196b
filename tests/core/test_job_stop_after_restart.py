"""A launcher, or a worker, asks for an end while the scheduler has just been started again, and does not know yet how far the ranks are."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.barrier_messages import JobSaved, NotHandedOver, StopJob
from recovery.core.ids import RequestId
from recovery.core.scheduler.barrier import BarrierState
from tests.core.drained import RULES
from tests.core.test_job_stop import Stopped, said


def test_a_scheduler_that_was_started_again_hears_from_all_ranks_where_they_are() -> None:
    stopped = Stopped()
    stopped.desk.restart()
    launcher = stopped.stop()
    for worker in stopped.workers:
        worker.register()
        stopped.stop(connection=launcher)
        assert stopped.desk.machine.state.barrier is None
    # The store does not say how far they are.
    for worker in stopped.workers:
        assert stopped.heard(launcher) == []
        worker.send(m.Heartbeat(sequence=1, generation=worker.generation, step=14))
        stopped.stop(connection=launcher)
    assert stopped.is_in(BarrierState.ASKING)


def test_it_judges_where_its_launcher_has_no_time_left_or_a_rank_is_lost_by_its_lease() -> None:
    stopped = Stopped()
    stopped.desk.restart()
    stopped.zero.register()
    launcher = stopped.desk.connect()
    at_once = StopJob(request_id=RequestId("now"), reason="SIGTERM", within_ms=0)
    stopped.desk.say(launcher, at_once)
    [answer] = stopped.heard(launcher)
    assert answer == said(10, "worker_1 is suspect (not heard since the scheduler restarted)", "now")
    for at_ms in range(0, RULES.lease_ms + 1, 1000):
        stopped.desk.at(at_ms)
        stopped.zero.beat()
    [answer] = stopped.heard(stopped.stop("later"))
    assert isinstance(answer, JobSaved)
    assert answer.obstacle


def test_a_worker_that_is_asked_to_end_waits_for_all_ranks_too() -> None:
    stopped = Stopped(standbys=1)
    stopped.desk.restart()
    stopped.one.register()
    stopped.depart()
    assert stopped.asked(stopped.one).step == 0, "it is told that it is heard: no answer would be one"
    stopped.answer(stopped.one, 14)
    for node in (stopped.zero, *stopped.standbys):
        node.register()
    assert stopped.is_in(BarrierState.ASKING)
    stopped.answer(stopped.zero, 14)
    for worker in stopped.workers:
        stopped.answer(worker, 14)
    for worker in stopped.workers:
        worker.save(15)
    assert stopped.is_in(BarrierState.HANDING_OVER)
    assert not stopped.one.hears(NotHandedOver)


def test_its_launcher_joins_a_worker_that_was_asked_by_the_same_signal() -> None:
    stopped = Stopped()
    stopped.desk.restart()
    stopped.one.register()
    stopped.depart()
    launcher = stopped.stop()
    assert stopped.heard(launcher) == []
    stopped.zero.register()
    for worker in stopped.workers:
        worker.send(m.Heartbeat(sequence=1, generation=worker.generation, step=14))
    stopped.stop(connection=launcher)
    step = stopped.until(BarrierState.SAVING)
    for worker in stopped.workers:
        worker.save(step)
    assert stopped.heard(launcher) == [said(step)]


def test_a_worker_waits_for_a_rank_that_does_not_come_back_no_longer_than_for_any_other() -> None:
    stopped = Stopped(standbys=1)
    stopped.desk.restart()
    for node in (stopped.one, *stopped.standbys):
        node.register()
    stopped.depart()
    stopped.desk.at(RULES.drain_timeout_ms)
    assert stopped.outcome() == "it took longer than 5 s (MS_DRAIN_TIMEOUT), asking"
    assert stopped.one.hears(NotHandedOver)
