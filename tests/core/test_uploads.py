"""Which committed step the ranks send to object storage, as the scheduler orders it and a worker carries it out."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.copy_messages import UploadOrder, UploadReport
from recovery.core.effects import Log
from recovery.core.ids import RequestId, ResumeToken, RunId
from recovery.core.records import EventKind
from recovery.core.rules import Rules
from recovery.core.scheduler.stimuli import MessageReceived
from recovery.core.worker import effects as we
from recovery.core.worker import stimuli as s
from tests.core.desk import Desk, Worker, begin, checkpoint
from tests.core.driven_worker import DrivenWorker

RULES = Rules(worker_count=2, rejoin_window_ms=0)


def senders(desk: Desk, *stores: bool) -> list[Worker]:
    """Workers that train, and send to object storage or do not."""
    found = [Worker(desk, f"worker_{rank}", stores=one) for rank, one in enumerate(stores or (True, True))]
    begin(found)
    return found


def orders(worker: Worker) -> list[int]:
    """The steps that it was ordered to send on its connection."""
    return [
        one.checkpoint.step for one in worker.desk.tray[worker.connection] if isinstance(one, UploadOrder)
    ]


def reports(worker: Worker, *, is_there: bool = True, step: int = 0, digest: str = "") -> None:
    """It says what became of its newest order, or of another checkpoint."""
    held = worker.last(UploadOrder).checkpoint
    worker.send(
        UploadReport(
            request_id=worker.request(),
            step=step or held.step,
            digest=digest or held.digest,
            is_there=is_there,
        )
    )


def logged(desk: Desk, worker: Worker, message: m.FromNode) -> list[str]:
    """What the scheduler says in its log of a message."""
    received = MessageReceived(worker.connection, message, "10.0.0.1", ResumeToken("t"), None)
    effects = desk.machine.handle(received, desk.now)
    desk._do(effects)
    return [f"{one.event} {one.text}" for one in effects if isinstance(one, Log) and one.warning]


def saving(worker: Worker, step: int) -> m.CheckpointReport:
    """As `Worker.save` says it."""
    held = checkpoint(step, path=f"{worker.node_id}/{step}", generation=worker.generation)
    return m.CheckpointReport(request_id=worker.request(), checkpoint=held)


def save(workers: list[Worker], *steps: int) -> None:
    for step in steps:
        for worker in workers:
            worker.save(step)


def is_sent(workers: list[Worker]) -> None:
    for worker in workers:
        reports(worker)


# --- the scheduler --------------------------------------------------------------------------------------------------------


def test_all_ranks_send_the_same_step_each_its_own_part_of_it() -> None:
    desk = Desk(RULES)
    workers = senders(desk)
    held = [worker.save(10) for worker in workers]
    assert [worker.last(UploadOrder) for worker in workers] == [
        UploadOrder(run=RunId(1), checkpoint=one) for one in held
    ]
    assert [orders(worker) for worker in workers] == [[10], [10]]


def test_what_only_one_rank_holds_is_sent_by_none() -> None:
    desk = Desk(RULES)
    first, second = senders(desk)
    first.save(10)
    assert orders(first) == orders(second) == []


def test_the_newest_that_waits_follows_when_each_rank_has_sent_its_part() -> None:
    desk = Desk(RULES)
    workers = first, second = senders(desk)
    save(workers, 10, 20, 30)
    assert orders(first) == [10]
    reports(first)
    reports(first)
    assert orders(first) == [10], "the other rank has not sent its part"
    reports(second)
    assert orders(first) == orders(second) == [10, 30]
    is_sent(workers)
    assert orders(first) == [10, 30]


def test_a_part_that_is_gone_keeps_nobody_waiting() -> None:
    desk = Desk(RULES)
    workers = first, second = senders(desk)
    save(workers, 10, 20)
    gone = second.last(UploadOrder).checkpoint
    said = logged(
        desk, second, UploadReport(request_id=second.request(), step=10, digest=gone.digest, is_there=False)
    )
    assert said == [
        "upload_passed step=10 node=worker_1 it has no part of it to send: this step will not be there"
    ]
    second.beat()
    assert orders(first) == orders(second) == [10, 20]
    reports(first, step=10, digest="worker_0/10@1")
    reports(second)
    save(workers, 30)
    assert orders(first) == [10, 20], "what was said of the step before is not said of this one"
    reports(first)
    assert orders(first) == [10, 20, 30]


def test_what_is_said_of_another_checkpoint_of_the_step_does_not_count() -> None:
    desk = Desk(RULES)
    workers = first, second = senders(desk)
    save(workers, 10, 20)
    reports(first)
    reports(second, digest="rolled back")
    assert orders(first) == [10]
    reports(second)
    assert orders(first) == [10, 20]


def test_what_a_process_without_a_rank_says_does_not_count() -> None:
    desk = Desk(Rules(worker_count=2, standby_count=1))
    workers = senders(desk)
    standby = Worker(desk, "spare", standby=True, stores=True)
    assert isinstance(standby.register(), m.Admitted)
    save(workers, 10, 20)
    standby.send(UploadReport(request_id=standby.request(), step=10, digest="worker_0/10@1", is_there=False))
    assert orders(workers[0]) == [10]
    assert orders(standby) == []


def test_a_rank_that_reconnects_is_ordered_again_what_it_has_not_reported() -> None:
    desk = Desk(RULES)
    workers = first, second = senders(desk)
    save(workers, 10)
    reports(second)
    for worker in workers:
        desk.lose(worker.connection)
    assert isinstance(second.register(), m.Admitted)
    assert orders(second) == []
    assert isinstance(first.register(), m.Admitted)
    assert orders(first) == [10]
    first.beat()
    assert orders(first) == [10], "once on a connection"
    assert orders(second) == []


@pytest.mark.parametrize(("stores", "ordered"), [((False, False), [[], []]), ((True, False), [[10], []])])
def test_only_a_rank_that_has_a_storage_is_ordered_anything(
    stores: tuple[bool, bool], ordered: list[list[int]]
) -> None:
    """An earlier release knows no such order, and closes the connection over it."""
    desk = Desk(RULES)
    workers = senders(desk, *stores)
    save(workers, 10)
    assert [orders(worker) for worker in workers] == ordered


def test_a_folder_is_sent_by_nobody_and_nothing_is_said_of_it() -> None:
    desk = Desk(RULES)
    workers = first, second = senders(desk)
    for step in (10, 20):
        first.save(step, path=f"worker_0/{step}/")
        assert logged(desk, second, saving(second, step)) == []
        assert orders(first) == orders(second) == []
    save(workers, 30)
    assert orders(first) == [30]


def test_nothing_is_begun_while_a_rank_is_away() -> None:
    desk = Desk(RULES)
    first, second = senders(desk)
    first.save(10)
    desk.lose(first.connection)
    second.save(10)
    assert orders(second) == []
    first.register()
    assert orders(first) == orders(second) == [10]


def test_a_scheduler_that_was_restarted_orders_the_newest_committed_step() -> None:
    desk = Desk(RULES)
    workers = senders(desk)
    save(workers, 10, 20)
    desk.restart()
    for worker in workers:
        worker.register()
    assert [orders(worker) for worker in workers] == [[20], [20]]


@pytest.mark.parametrize(("back_to", "then"), [(20, []), (10, [10])])
def test_a_plan_has_sent_what_it_goes_back_to_unless_that_is_there(back_to: int, then: list[int]) -> None:
    desk = Desk(RULES)
    workers = first, second = senders(desk)
    held = {step: [worker.save(step) for worker in workers] for step in (10, 20)}
    for _ in (10, 20):
        is_sent(workers)
    save(workers, 30)
    assert orders(first) == [10, 20, 30]
    second.die()
    second.token = None
    desk.at(RULES.reconnect_grace_ms + 1)
    second.register()
    for rank, worker in enumerate(workers):
        worker.ready(*(held[step][rank] for step in held if step <= back_to))
    assert first.follow().step == back_to
    assert orders(first) == [10, 20, 30, *then]
    assert orders(second) == then
    second.follow()
    save(workers, 30)
    if then:
        is_sent(workers)
    assert orders(first)[-1] == 30
    assert first.last(UploadOrder).checkpoint.generation == 2


def test_an_upload_goes_on_when_its_step_is_history_in_the_index() -> None:
    """A slow storage: what was ordered is ordered again after a reconnect, as long as the rank may hold it."""
    desk = Desk(RULES)
    workers = first, _ = senders(desk)
    save(workers, *range(10, 300, 10))
    desk.lose(first.connection)
    first.register()
    assert orders(first) == [10]


def skipped(desk: Desk, workers: list[Worker], *steps: int) -> list[str]:
    """What the scheduler logs while these steps are committed."""
    said: list[str] = []
    for step in steps:
        first, last = workers
        first.save(step)
        said += logged(desk, last, saving(last, step))
    return said


def test_each_step_that_is_skipped_is_said_with_the_reason() -> None:
    desk = Desk(RULES)
    workers = first, _ = senders(desk)
    assert skipped(desk, workers, 10, 20) == []
    why = "object storage was not done with the step before"
    assert skipped(desk, workers, 30) == [f"uploads_skipped steps=20 instead=30 reason='{why}'"]
    first.send(m.NotSaved(request_id=first.request(), step=10, reason="no route to it", uploading=True))
    first.send(m.NotSaved(request_id=first.request(), step=20, reason="disk full"))
    assert EventKind.UPLOAD_FAILED in desk.kinds()
    assert skipped(desk, workers, 40) == ["uploads_skipped steps=30 instead=40 reason='no route to it'"]


def test_nothing_is_skipped_where_there_is_no_storage() -> None:
    desk = Desk(RULES)
    assert skipped(desk, senders(desk, False, False), 10, 20, 30) == []


# --- a worker -------------------------------------------------------------------------------------------------------------


def test_a_registration_says_whether_there_is_a_storage() -> None:
    assert DrivenWorker().registering().sent(m.Register)[0].stores is False
    assert DrivenWorker(stores=True).registering().sent(m.Register)[0].stores is True


def test_an_order_is_carried_out_and_reported_until_it_is_answered() -> None:
    worker = DrivenWorker(stores=True).training()
    held = checkpoint(10, path="mine/10")
    assert worker.receive(UploadOrder(run=RunId(1), checkpoint=held)) == [we.Upload(held)]

    worker.handle(s.Uploaded(RequestId("u"), 10, held.digest, is_there=True))
    report = UploadReport(request_id=RequestId("u"), step=10, digest=held.digest, is_there=True)
    worker.assert_sent_until_answered(report)


def test_orders_of_another_run_or_to_a_process_that_leaves_are_nothing() -> None:
    order = UploadOrder(run=RunId(1), checkpoint=checkpoint(10, path="mine/10"))
    assert DrivenWorker().registering().receive(order) == []
    worker = DrivenWorker().training()
    assert worker.receive(msgspec.structs.replace(order, run=RunId(2))) == []
    worker.handle(s.StopAsked(RequestId("stop"), "SIGTERM"))
    assert worker.receive(order) == []
