"""Copies of checkpoints on other hosts, as the scheduler orders them."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.copy_messages import CopiesKept, CopyReport
from recovery.core.copy_records import CopyState
from recovery.core.failed_work import FailedWork
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind, JobRecord
from recovery.core.rules import Rules
from recovery.core.scheduler.checkpoints.copying import ORDERS_MAX
from tests.core.copiers import (
    RULES,
    all_copied,
    fails,
    held_copies,
    orders,
    reports,
    server,
    servers,
    source,
)
from tests.core.desk import Desk, begin, checkpoint


def job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


def states(desk: Desk, step: int) -> list[CheckpointState]:
    return [one.state for one in desk.row(CheckpointRecord) if one.step == step]


# --- ordering -----------------------------------------------------------------------------------------------------------


def test_a_committed_step_is_copied_to_the_next_host() -> None:
    desk = Desk(RULES)
    first, second = servers(desk)
    held = [first.save(10), second.save(10)]

    [order] = orders(first)
    assert (order.rank, order.checkpoint, order.sources) == (1, held[1], (source(second),))
    assert orders(second)[0].rank == 0
    reports(first, order)
    assert EventKind.CHECKPOINT_COPIED not in desk.kinds()
    reports(second, orders(second)[0])

    assert desk.kinds().count(EventKind.CHECKPOINT_COPIED) == 1
    assert held_copies(desk) == [(10, 0, "worker_1"), (10, 1, "worker_0")]
    assert first.last(CopiesKept) == CopiesKept(
        run=first.last(m.Admitted).run, copied=10, oldest=0, oldest_in_memory=10
    )


def test_while_a_step_is_copied_only_the_newest_committed_one_waits() -> None:
    desk = Desk(RULES)
    workers = first, second = servers(desk)
    for step in (10, 20, 30):
        for worker in workers:
            worker.save(step)
    assert [one.checkpoint.step for one in orders(first)] == [10]
    assert first.last(m.Committed).copying == 10

    reports(first, orders(first)[0])
    reports(second, orders(second)[0])
    assert [one.checkpoint.step for one in orders(first)] == [10, 30]
    for worker in workers:
        worker.save(40)
    assert (first.last(m.Committed).copied, first.last(m.Committed).copying) == (10, 30)


def test_holders_let_go_what_is_older_than_the_two_newest_copied_steps() -> None:
    desk = Desk(RULES)
    first, second = servers(desk)
    all_copied(desk, [first, second], 10, 20, 30)

    assert first.last(CopiesKept).oldest == 20
    assert held_copies(desk, CopyState.GONE) == [(10, 0, "worker_1"), (10, 1, "worker_0")]
    assert len(held_copies(desk)) == 4


@pytest.mark.parametrize(
    ("rules", "hosts"),
    [
        (Rules(worker_count=2, checkpoint_copies=0), ("a", "b")),
        (Rules(worker_count=2), ("a", "a")),
    ],
)
def test_nothing_is_copied_on_one_host_or_where_nobody_wants_it(rules: Rules, hosts: tuple[str, str]) -> None:
    desk = Desk(rules)
    workers = [server(desk, f"worker_{index}", host) for index, host in enumerate(hosts)]
    begin(workers)
    for worker in workers:
        worker.save(10)
    assert not orders(workers[0])
    assert not orders(workers[1])
    assert EventKind.COPIES_LIMITED not in desk.kinds()


def test_an_event_says_once_that_there_are_too_few_hosts() -> None:
    desk = Desk(msgspec.structs.replace(RULES, checkpoint_copies=2))
    workers = servers(desk)
    all_copied(desk, workers, 10, 20)
    said = [one for one in desk.events if one.kind is EventKind.COPIES_LIMITED]
    assert [one.reason for one in said] == [
        "MS_CHECKPOINT_COPIES=2 needs 3 hosts whose workers give files, there are 2: 1 of each checkpoint"
    ]
    assert len(held_copies(desk)) == 4

    alone = Desk(RULES)
    pair = [server(alone, name, "one host") for name in ("worker_0", "worker_1")]
    begin(pair)
    all_copied(alone, pair, 10)
    assert alone.kinds().count(EventKind.COPIES_LIMITED) == 1
    assert not orders(pair[0])


def test_who_reconnects_is_ordered_again_what_it_has_not_reported() -> None:
    desk = Desk(RULES)
    first, second = servers(desk)
    first.save(10)
    second.save(10)
    reports(second, orders(second)[0])
    desk.lose(first.connection)
    assert isinstance(first.register(), m.Admitted)

    [again] = orders(first)
    assert again.rank == 1
    second.beat()
    assert len(orders(first)) == 1
    reports(first, again)
    assert EventKind.CHECKPOINT_COPIED in desk.kinds()


def test_a_holder_of_many_ranks_copies_is_asked_in_windows() -> None:
    """Most ranks are on one host: at once, what the other's few are asked for would be more than waits for one peer."""
    count = 2 * ORDERS_MAX + 2
    desk = Desk(Rules(worker_count=count, checkpoint_copies=1), checked=False)
    *many, alone = [server(desk, f"w{rank}", "b" if rank == count - 1 else "a") for rank in range(count)]
    begin([*many, alone])
    for worker in (*many, alone):
        worker.save(10)
    assert len(orders(alone)) == ORDERS_MAX
    # What was ordered on a connection that is gone counts no more.
    desk.lose(alone.connection)
    assert isinstance(alone.register(), m.Admitted)
    assert len(orders(alone)) == ORDERS_MAX

    done = 0
    while done < len(orders(alone)):
        assert len(orders(alone)) - done <= ORDERS_MAX
        reports(alone, orders(alone)[done])
        done += 1
    reports(many[0], orders(many[0])[0])

    assert sorted(order.rank for order in orders(alone)) == list(range(count - 1))
    assert EventKind.CHECKPOINT_COPIED in desk.kinds()


def test_nothing_is_ordered_while_somebody_is_away() -> None:
    desk = Desk(RULES)
    first, second = servers(desk)
    first.save(10)
    desk.lose(first.connection)
    second.save(10)
    assert not orders(second)
    first.register()
    assert orders(first)
    assert orders(second)


def test_an_order_waits_until_somebody_can_give_it() -> None:
    desk = Desk(msgspec.structs.replace(RULES, worker_count=3))
    first, second, third = servers(desk, "worker_0", "worker_1", "worker_2")
    for worker in (first, second, third):
        worker.save(10)
    desk.lose(second.connection)
    desk.lose(third.connection)
    third.register()
    assert not orders(third), "worker_1, whose file it copies, is away"
    second.register()
    assert orders(third)[0].rank == 1


def test_a_scheduler_that_was_restarted_orders_what_is_missing() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    all_copied(desk, workers, 10)
    first.save(20)
    second.save(20)
    reports(first, orders(first)[-1])
    desk.restart()
    first.register()
    assert not orders(first)
    second.register()

    assert not orders(first)
    [missing] = orders(second)
    assert (missing.rank, missing.checkpoint.step) == (0, 20)
    reports(second, missing)
    assert second.last(CopiesKept) == CopiesKept(run=missing.run, copied=20, oldest=10, oldest_in_memory=20)


# --- copies that do not come ---------------------------------------------------------------------------------------------


def test_a_copy_that_is_given_up_is_an_event_and_the_next_step_is_copied() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    first.save(10)
    second.save(10)
    fails(first, orders(first)[0])
    reports(second, orders(second)[0])
    assert EventKind.CHECKPOINT_COPIED not in desk.kinds()
    failed = next(one for one in desk.events if one.kind is EventKind.COPY_FAILED)
    assert (failed.node_id, failed.step, failed.reason, failed.details) == (
        "worker_0",
        10,
        "worker_1: it is cut",
        "rank 1",
    )
    failed_work = desk.machine.state.checkpoints.failed_work
    assert failed_work == FailedWork(not_copied=1, last_failed="worker_0, step 10: worker_1: it is cut")
    all_copied(desk, workers, 20)
    assert desk.kinds().count(EventKind.CHECKPOINT_COPIED) == 1


def test_words_of_another_run_of_a_rolled_back_step_or_of_nothing_ordered_count_for_nothing() -> None:
    desk = Desk(RULES)
    first, second = servers(desk)
    first.save(10)
    second.save(10)
    order = orders(first)[0]
    fails(first, order, run=2)
    fails(first, order, gives_up=False)
    fails(second, order)
    strange = checkpoint(10, run=2, path="worker_0/copies/1/10")
    first.send(CopyReport(request_id=first.request(), rank=order.rank, checkpoint=strange))
    older = msgspec.structs.replace(order.checkpoint, step=5, digest="older")
    first.send(CopyReport(request_id=first.request(), rank=order.rank, checkpoint=older))
    assert held_copies(desk) == [(5, 1, "worker_0")]
    reports(first, order)
    reports(second, orders(second)[0])
    assert EventKind.CHECKPOINT_COPIED in desk.kinds()


def test_an_owners_file_that_a_holder_found_damaged_is_looked_at_by_its_owner() -> None:
    desk = Desk(RULES)
    first, second = servers(desk)
    first.save(10)
    second.save(10)
    fails(first, orders(first)[0], damaged=True)
    assert EventKind.CHECKPOINT_INVALID not in desk.kinds()
    assert states(desk, 10) == [CheckpointState.COMMITTED] * 2


def test_copies_that_are_complete_when_a_plan_is_made_are_noted_and_nobody_lets_go() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    saved = all_copied(desk, workers, 10)[10]
    first.save(20)
    second.save(20)
    first.ready(saved[0])
    for worker in workers:
        reports(worker, orders(worker)[-1])
    assert desk.kinds().count(EventKind.CHECKPOINT_COPIED) == 2
    assert first.last(CopiesKept).copied == 10
    second.ready(saved[1])
    assert first.follow().step == 10
    assert held_copies(desk, CopyState.GONE) == [
        (10, 0, "worker_1"),
        (10, 1, "worker_0"),
        (20, 0, "worker_1"),
        (20, 1, "worker_0"),
    ]


# --- folders ------------------------------------------------------------------------------------------------------------


def test_folders_are_not_copied_and_an_event_says_so_once() -> None:
    desk = Desk(RULES)
    workers = servers(desk)
    for step in (10, 20):
        for worker in workers:
            worker.save(step, path=f"/ckpt/step_{step}/")

    assert [one.step for one in desk.row(CheckpointRecord) if one.state is CheckpointState.COMMITTED]
    assert not [order for worker in workers for order in orders(worker)]
    [reason] = [one.reason for one in desk.events if one.kind is EventKind.COPIES_LIMITED]
    assert "folders" in reason
    # A file is copied again.
    for worker in workers:
        worker.save(30)
    assert [one.checkpoint.step for one in orders(workers[0])] == [30]
