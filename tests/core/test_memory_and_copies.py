"""Checkpoints in memory beside copies on other hosts: what lies on disks is copied first, and a lost host gets back what others hold."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.barrier_messages import JobSaved
from recovery.core.checkpoints import CheckpointIndex
from recovery.core.copy_messages import CopiesKept
from recovery.core.ids import Rank, RunId
from recovery.core.records import EventKind
from recovery.core.worker import effects as we
from tests.core.copiers import (
    RULES,
    all_copied,
    fails,
    held_copies,
    is_restarting,
    orders,
    ready,
    reports,
    server,
    servers,
    source,
)
from tests.core.desk import Desk, Worker
from tests.core.driven_worker import DrivenWorker
from tests.core.test_job_stop import stop
from tests.core.test_memory_steps import in_memory, on_disk, save_in_memory


def in_memory_of_all(workers: list[Worker], step: int) -> list[m.HeldCheckpoint]:
    """A step that all have saved in memory."""
    return [save_in_memory(worker, step, rank) for rank, worker in enumerate(workers)]


def copied_steps(worker: Worker) -> list[int]:
    """Of what it was ordered to copy on its connection."""
    return [one.checkpoint.step for one in orders(worker)]


def report_all(workers: list[Worker], step: int) -> list[m.HeldCheckpoint]:
    """Every copy of the step that was ordered is made; the copies as they lie."""
    return [
        reports(worker, order)
        for worker in workers
        for order in orders(worker)
        if order.checkpoint.step == step
    ]


def test_what_is_in_memory_is_copied_while_no_step_on_disks_waits() -> None:
    desk = Desk(RULES)
    workers = first, second = servers(desk)
    in_memory_of_all(workers, 5)
    assert copied_steps(first) == copied_steps(second) == [5]
    in_memory_of_all(workers, 10)
    said = first.last(m.Committed)
    assert (said.step, said.copied_in_memory, said.copying) == (10, 0, 5)
    for worker in workers:
        worker.save(15)
    in_memory_of_all(workers, 20)

    report_all(workers, 5)
    assert copied_steps(first) == [5, 15], "what lies on disks is next"
    assert first.last(CopiesKept) == CopiesKept(run=RunId(1), copied=0, oldest=0, oldest_in_memory=5)
    in_memory_of_all(workers, 25)
    said = first.last(m.Committed)
    assert (said.durable_step, said.copied, said.copied_in_memory, said.copying) == (15, 0, 5, 15)
    report_all(workers, 15)
    assert first.last(CopiesKept) == CopiesKept(run=RunId(1), copied=15, oldest=0, oldest_in_memory=15)
    assert copied_steps(first) == copied_steps(second) == [5, 15, 25], "the newest in memory"
    report_all(workers, 25)
    assert first.last(CopiesKept) == CopiesKept(run=RunId(1), copied=15, oldest=0, oldest_in_memory=25)
    assert sorted(held_copies(desk)) == [
        (15, 0, "worker_1"), (15, 1, "worker_0"), (25, 0, "worker_1"), (25, 1, "worker_0"),
    ]  # fmt: skip
    told = [(one.step, one.reason) for one in desk.events if one.kind is EventKind.CHECKPOINT_COPIED]
    assert told == [(5, "in memory"), (15, ""), (25, "in memory")]


def test_a_host_that_is_lost_gets_what_it_had_in_memory_from_another_one() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    disk = all_copied(desk, workers, 10)[10]
    memory = in_memory_of_all(workers, 20)
    report_all(workers, 20)
    second.die()
    desk.at(desk.now + 600)
    back = server(desk, "worker_1", host="another host")
    back.register()
    ready(first, memory[0], disk[0], copies={1: [disk[1], memory[1]]})
    ready(back)

    plan = back.follow()
    assert (plan.step, plan.digest, plan.sources) == (20, memory[1].digest, (source(first),))
    assert (plan.committed_step, plan.durable_step) == (20, 0), "the disk of rank 1 has nothing"


def test_a_holder_whose_memory_is_gone_is_not_asked() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    disk = all_copied(desk, workers, 10)[10]
    memory = in_memory_of_all(workers, 20)
    report_all(workers, 20)
    again = is_restarting(first)
    lost = is_restarting(second)
    ready(again, disk[0], copies={1: [disk[1]]})
    ready(lost, memory[1], disk[1])
    assert lost.follow().step == 10


def test_what_is_being_copied_stays_in_the_index_and_is_ordered_again() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    in_memory_of_all(workers, 5)
    for step in (10, 15, 20):
        in_memory_of_all(workers, step)
    desk.lose(first.connection)
    first.register()
    assert copied_steps(first) == [5]
    report_all(workers, 5)
    assert copied_steps(second) == [5, 20], "of those that were committed meanwhile the newest is next"


def test_a_holder_without_memory_for_copies_says_so_once_for_a_plan() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    in_memory_of_all(workers, 5)
    in_memory_of_all(workers, 10)
    fails(first, orders(first)[0], reason="there is no room")
    fails(second, orders(second)[0], reason="nor here")
    in_memory_of_all(workers, 15)
    assert copied_steps(first) == [5]
    limited = [one.reason for one in desk.events if one.kind is EventKind.COPIES_LIMITED]
    assert limited == [
        "worker_0 takes no copy into its memory, so until the next plan none are made there: there is no room"
    ]
    for worker in workers:
        worker.save(20)
    assert copied_steps(first) == [5, 20], "the disk has room"
    fails(first, orders(first)[1], reason="it is full")
    fails(second, orders(second)[1])
    assert len([one for one in desk.events if one.kind is EventKind.COPIES_LIMITED]) == 1

    memory = in_memory_of_all(workers, 25)
    back = is_restarting(second)
    ready(first, memory[0])
    ready(back, memory[1])
    assert back.follow().step == 25
    assert copied_steps(first) == [5, 20, 25]


def test_a_step_on_disks_makes_an_older_one_in_memory_needless() -> None:
    desk = Desk(RULES)
    workers = first, _ = servers(desk)
    in_memory_of_all(workers, 5)
    in_memory_of_all(workers, 10)
    for worker in workers:
        worker.save(15)
    report_all(workers, 5)
    report_all(workers, 15)
    assert copied_steps(first) == [5, 15]


def test_a_disk_step_behind_one_in_memory_is_copied() -> None:
    desk = Desk(RULES)
    workers = first, _ = servers(desk)
    in_memory_of_all(workers, 20)
    for worker in workers:
        worker.save(10)
    report_all(workers, 20)
    assert copied_steps(first) == [20, 10]
    report_all(workers, 10)
    said = first.last(CopiesKept)
    assert (said.copied, said.oldest_in_memory) == (10, 20), "the newer one stays"


def test_a_plan_at_a_step_in_memory_has_the_disk_step_before_it_copied_first() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    disk = [worker.save(10) for worker in workers]
    memory = in_memory_of_all(workers, 20)
    back = is_restarting(second)
    ready(first, disk[0], memory[0])
    ready(back, disk[1], memory[1])

    plan = back.follow()
    assert (plan.step, plan.durable_step, plan.sources) == (20, 10, ())
    assert copied_steps(back) == [10]
    assert copied_steps(first) == [10, 10], "once in each generation"
    reports(first, orders(first)[1])
    reports(back, orders(back)[0])
    assert copied_steps(first) == [10, 10, 20]


@pytest.mark.parametrize("in_memory_is_copied", [False, True])
def test_a_scheduler_that_starts_again_copies_what_is_missing(*, in_memory_is_copied: bool) -> None:
    desk = Desk(RULES)
    workers = first, _ = servers(desk)
    all_copied(desk, workers, 10)
    in_memory_of_all(workers, 20)
    if in_memory_is_copied:
        report_all(workers, 20)
    desk.restart()
    for worker in workers:
        worker.register()
    assert copied_steps(first) == ([] if in_memory_is_copied else [20])
    in_memory_of_all(workers, 30)
    said = first.last(m.Committed)
    assert (said.copied, said.copied_in_memory) == (10, 20 if in_memory_is_copied else 0)


def test_a_host_that_is_lost_with_disk_and_memory_gets_its_copy() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    disk = all_copied(desk, workers, 10)[10]
    memory = in_memory_of_all(workers, 20)
    second.die()
    desk.at(desk.now + 600)
    back = server(desk, "worker_1", host="another host")
    back.register()
    ready(first, disk[0], memory[0], copies={1: [disk[1]]})
    ready(back)

    plan = back.follow()
    assert (plan.step, plan.digest, plan.sources) == (10, disk[1].digest, (source(first),))
    assert (plan.committed_step, plan.durable_step) == (10, None)
    [*_, made] = [one for one in desk.events if one.kind is EventKind.PLAN_MADE]
    assert "rank 1 loads the copy of worker_0" in made.reason
    assert "step 20 was committed and is not usable: rank 1: it was in memory" in made.reason


def test_a_step_that_a_rank_still_fetches_from_a_disk_is_durable() -> None:
    index = CheckpointIndex(2)
    index.replace(Rank(0), [on_disk(10, 0)])
    index.replace(Rank(1), [])
    index.roll_back(10, fetched={Rank(1): on_disk(10, 1)})
    assert (index.committed_step, index.durable_step) == (10, 10)
    index.bring_back(Rank(1), on_disk(10, 1))
    index.add(Rank(0), in_memory(20, 0))
    assert index.add(Rank(1), in_memory(20, 1)) is True
    assert (index.committed_step, index.durable_step) == (20, 10)


def test_a_worker_that_connects_again_keeps_what_is_copied_and_what_lies_on_disks() -> None:
    worker = DrivenWorker().training()
    worker.receive(
        m.Committed(run=RunId(1), step=30, durable_step=20, copied=10, copying=20, copied_in_memory=25)
    )
    worker.reconnect()
    worker.admitted(resumed=True, committed=40, durable=20)
    assert worker.effects_of(we.Retain) == [we.Retain(40, (10, 20), 20, (25, 20))]


def test_who_connects_again_is_told_what_lies_on_disks() -> None:
    desk = Desk(RULES)
    first, _ = workers = servers(desk)
    for worker in workers:
        worker.save(10)
    in_memory_of_all(workers, 20)
    desk.lose(first.connection)
    first.register()
    said = first.last(m.Admitted)
    assert (said.committed_step, said.durable_step) == (20, 10)


@pytest.mark.parametrize("who_fetches", [(0, 1), (1,)])
def test_what_is_fetched_from_memory_is_not_durable_before_it_lies_on_the_disk(
    who_fetches: tuple[int, ...],
) -> None:
    """Else files on the disk go for it, and it is gone with the next host."""
    index = CheckpointIndex(2)
    for rank in (0, 1):
        index.add(Rank(rank), on_disk(10, rank))
    for rank in {0, 1} - {*who_fetches}:
        index.add(Rank(rank), on_disk(20, rank))
    index.roll_back(20, fetched={Rank(rank): in_memory(20, rank) for rank in who_fetches})
    assert (index.committed_step, index.durable_step) == (20, 10)
    for rank in who_fetches:
        index.bring_back(Rank(rank), on_disk(20, rank))
    for rank in (0, 1):
        index.add(Rank(rank), in_memory(30, rank))
    assert (index.committed_step, index.durable_step) == (30, 20)


def test_a_plan_of_copies_in_memory_alone_lets_nothing_go_on_the_disks() -> None:
    """What the ranks had in their own memory is gone, and each fetches it from the other's."""
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    disk = [worker.save(10) for worker in workers]
    memory = in_memory_of_all(workers, 20)
    report_all(workers, 20)
    back = is_restarting(first), is_restarting(second)
    for rank, worker in enumerate(back):
        ready(worker, disk[rank], copies={1 - rank: [memory[1 - rank]]})

    plans = [worker.follow() for worker in back]
    assert [(plan.step, plan.durable_step, len(plan.sources)) for plan in plans] == [(20, 10, 1)] * 2
    for worker, held in zip(back, memory, strict=True):
        here = msgspec.structs.replace(held, path=f"{worker.node_id}.copies/20")
        worker.send(m.CheckpointReport(request_id=worker.request(), checkpoint=here))
    in_memory_of_all([*back], 30)
    assert back[0].last(m.Committed).durable_step == 20


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        ((), "no checkpoint is left, and 9 steps are lost"),
        (("own disk",), "step 3 is on the ranks' own disks, 6 steps back"),
        (("memory",), "step 5 is in other hosts' memory, 4 steps back"),
        (
            ("disk", "memory"),
            "step 3 is on other hosts' disks, too, 6 steps back, step 5 is in other hosts' memory, 4 steps back",
        ),
    ],
)
def test_a_host_that_leaves_and_could_not_save_is_told_what_is_left(kept: tuple[str, ...], left: str) -> None:
    """Its launcher said which step is on the ranks' disks, and no more, also where other hosts hold a newer one in memory."""
    desk = Desk(msgspec.structs.replace(RULES, drain_timeout_ms=5_000))
    workers = servers(desk)
    for worker in workers if {"own disk", "disk"} & set(kept) else ():
        worker.save(3)
    if "disk" in kept:
        report_all(workers, 3)
    if "memory" in kept:
        in_memory_of_all(workers, 5)
        report_all(workers, 5)
    for worker in workers:
        worker.send(m.FirstStep(generation=worker.generation, step=9))
    launcher = stop(desk, within_ms=1_000, nodes=(workers[1].node_id,))
    desk.at(desk.now + 1_000)

    [ended] = [one for one in desk.events if one.kind is EventKind.DRAIN_ENDED]
    late = "no standby is ready; it took longer than the 1 s that are left to its host, asking; "
    assert ended.reason == late + left
    [answer] = desk.tray[launcher]
    assert isinstance(answer, JobSaved)
    assert answer.obstacle == ended.reason
