"""Checkpoints in memory beside copies on other hosts: what lies on disks is copied, and a lost host sends all to it."""

from __future__ import annotations

from recovery.core import messages as m
from recovery.core.checkpoints import CheckpointCoordinator
from recovery.core.copy_messages import CopiesKept
from recovery.core.ids import Rank, RunId
from recovery.core.records import EventKind
from recovery.core.worker import effects as we
from tests.core.copiers import RULES, all_copied, comes_back, orders, ready, reports, server, servers, source
from tests.core.desk import Desk, Worker
from tests.core.driven_worker import DrivenWorker
from tests.core.test_memory_steps import in_memory, on_disk, save_in_memory


def in_memory_of_all(workers: list[Worker], step: int) -> list[m.HeldCheckpoint]:
    """A step that all have saved in memory."""
    return [save_in_memory(worker, step, rank) for rank, worker in enumerate(workers)]


def copied_steps(worker: Worker) -> list[int]:
    """Of what it was ordered to copy on its connection."""
    return [one.checkpoint.step for one in orders(worker)]


def test_what_is_in_memory_is_not_copied_and_what_is_copied_goes_on() -> None:
    desk = Desk(RULES)
    workers = first, second = servers(desk)
    in_memory_of_all(workers, 5)
    assert orders(first) == []

    for worker in workers:
        worker.save(10)
    in_memory_of_all(workers, 15)
    said = first.last(m.Committed)
    assert (said.step, said.durable_step, said.copied, said.copying) == (15, 10, 0, 10)
    for worker in workers:
        reports(worker, orders(worker)[0])
    in_memory_of_all(workers, 20)

    said = first.last(m.Committed)
    assert (said.step, said.durable_step, said.copied, said.copying) == (20, 10, 10, 0)
    assert copied_steps(first) == copied_steps(second) == [10]
    assert first.last(CopiesKept).copied == 10


def test_a_disk_step_behind_one_in_memory_is_copied() -> None:
    desk = Desk(RULES)
    workers = servers(desk)
    in_memory_of_all(workers, 20)
    for worker in workers:
        worker.save(10)
    assert copied_steps(workers[0]) == [10]


def test_a_plan_at_a_step_in_memory_has_the_disk_step_before_it_copied() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    disk = [worker.save(10) for worker in workers]
    memory = in_memory_of_all(workers, 20)
    back = comes_back(second)
    ready(first, disk[0], memory[0])
    ready(back, disk[1], memory[1])

    plan = back.follow()
    assert (plan.step, plan.durable_step, plan.sources) == (20, 10, ())
    assert copied_steps(back) == [10]
    assert copied_steps(first) == [10, 10], "once in each generation"


def test_a_scheduler_that_starts_again_copies_what_lies_on_disks() -> None:
    desk = Desk(RULES)
    workers = servers(desk)
    for worker in workers:
        worker.save(10)
    in_memory_of_all(workers, 20)
    desk.restart()
    for worker in workers:
        worker.register()
    assert copied_steps(workers[0]) == copied_steps(workers[1]) == [10]


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


def test_a_step_that_a_rank_still_fetches_is_durable() -> None:
    index = CheckpointCoordinator(2)
    index.replace(Rank(0), [on_disk(10, 0)])
    index.replace(Rank(1), [])
    index.roll_back(10)
    assert (index.committed_step, index.durable_step) == (10, 10)
    index.bring_back(Rank(1), on_disk(10, 1))
    index.add(Rank(0), in_memory(20, 0))
    assert index.add(Rank(1), in_memory(20, 1)) is True
    assert (index.committed_step, index.durable_step) == (20, 10)


def test_a_worker_that_connects_again_keeps_what_is_copied_and_what_lies_on_disks() -> None:
    worker = DrivenWorker().training()
    worker.receive(m.Committed(run=RunId(1), step=30, durable_step=20, copied=10, copying=20))
    worker.reconnect()
    worker.admitted(resumed=True, committed=40, durable=20)
    assert worker.effects_of(we.Retain) == [we.Retain(40, (10, 20), 20)]


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
