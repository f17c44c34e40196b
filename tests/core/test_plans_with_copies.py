"""Plans that go where only a copy is: a host has lost its disk, a file is damaged, a standby takes a rank."""

from __future__ import annotations

import msgspec

from recovery.core import messages as m
from recovery.core.copy_records import CopyState
from recovery.core.ids import Generation
from recovery.core.records import CheckpointRecord, CheckpointState, EventKind, JobRecord, JobState
from tests.core.copiers import (
    RULES,
    all_copied,
    copied,
    held_copies,
    is_restarting,
    not_fetched,
    orders,
    ready,
    server,
    servers,
    source,
)
from tests.core.desk import Desk, Worker, checkpoint


def job(desk: Desk) -> JobRecord:
    return desk.row(JobRecord)[0]


def states(desk: Desk, step: int) -> list[CheckpointState]:
    return [one.state for one in desk.row(CheckpointRecord) if one.step == step]


def lost_disk(desk: Desk, workers: list[Worker], step: int) -> tuple[Worker, m.Rollback]:
    """The second worker comes back on an empty disk when `step` is copied; its plan."""
    saved = all_copied(desk, workers, step)[step]
    back = is_restarting(workers[1])
    ready(workers[0], saved[0], copies={1: [saved[1]]})
    ready(back)
    workers[0].follow()
    return back, back.follow()


def test_a_rank_on_an_empty_disk_is_sent_to_who_holds_its_copy() -> None:
    desk = Desk(RULES)
    first, _ = workers = servers(desk)
    back, plan = lost_disk(desk, workers, 10)

    assert (plan.step, plan.path, plan.sources) == (10, "", (source(first),))
    assert plan.digest == "worker_1/10@1"
    assert (plan.file_bytes, plan.written) == (1, 1)
    assert first.last(m.Rollback).path == "worker_0/10"
    assert first.last(m.Rollback).sources == ()
    assert states(desk, 10) == [CheckpointState.COMMITTED, CheckpointState.FETCHING]
    made = [one for one in desk.events if one.kind is EventKind.PLAN_MADE][-1]
    assert made.reason == "every rank holds step 10; rank 1 loads the copy of worker_0"

    held = copied(checkpoint(10, path="worker_1/10"), back, 1)
    held = msgspec.structs.replace(held, digest=plan.digest)
    back.send(m.CheckpointReport(request_id=back.request(), checkpoint=held))
    assert states(desk, 10) == [CheckpointState.COMMITTED] * 2
    assert EventKind.CHECKPOINT_FETCHED in desk.kinds()
    assert orders(back)[-1].rank == 0, "its copies of others are gone too"


def test_a_plan_with_sources_is_sent_again_as_it_was() -> None:
    desk = Desk(RULES)
    back, plan = lost_disk(desk, servers(desk), 10)
    back.generation = Generation(0)
    desk.lose(back.connection)
    back.register()
    assert back.last(m.Rollback) == plan


def test_a_scheduler_that_ends_while_a_rank_fetches_plans_again() -> None:
    desk = Desk(RULES)
    first, _ = workers = servers(desk)
    back, _ = lost_disk(desk, workers, 10)
    desk.restart()
    assert (job(desk).state, job(desk).reason) == (
        JobState.INTERRUPTED,
        "the checkpoint of step 10 was being fetched when the scheduler ended",
    )
    for worker in (first, back):
        worker.register()
    ready(first, checkpoint(10, path="worker_0/10"), copies={1: [checkpoint(10, path="worker_1/10")]})
    ready(back)
    assert back.follow().sources == (source(first),)


def test_a_holder_that_does_not_answer_is_not_named_again_until_it_has_another_address() -> None:
    desk = Desk(RULES)
    first, _ = workers = servers(desk)
    back, plan = lost_disk(desk, workers, 10)
    not_fetched(back, plan)
    assert job(desk).reason == "worker_1 could not fetch its checkpoint of step 10: worker_0: it is cut"
    own = checkpoint(10, path="worker_0/10")
    theirs = checkpoint(10, path="worker_1/10")
    ready(back)
    ready(first, own, copies={1: [theirs]})
    assert job(desk).state is JobState.FAILED
    assert "rank 1: worker_0: it is cut" in job(desk).reason

    desk.restart()
    first.register()
    ready(first, own, copies={1: [theirs]})
    back.register()
    ready(back)
    assert back.follow().sources == (source(first),)


def test_a_damaged_copy_is_never_used_again_and_an_older_step_is() -> None:
    desk = Desk(RULES)
    first, _ = workers = servers(desk)
    saved = all_copied(desk, workers, 10)
    back, plan = lost_disk(desk, workers, 20)
    not_fetched(back, plan, damaged=True)
    invalid = next(one for one in desk.events if one.kind is EventKind.CHECKPOINT_INVALID)
    assert (invalid.node_id, invalid.reason) == ("worker_0", "its copy for rank 1: it is cut")
    assert held_copies(desk, CopyState.DAMAGED) == [(20, 1, "worker_0")]

    files = {10: saved[10][1], 20: checkpoint(20, path="worker_1/20")}
    desk.restart()
    for worker in (first, back):
        worker.register()
    ready(first, saved[10][0], checkpoint(20, path="worker_0/20"), copies={1: list(files.values())})
    ready(back)
    plan = back.follow()
    assert (plan.step, plan.digest) == (10, saved[10][1].digest)


def test_a_node_that_cannot_take_it_is_not_sent_there_again() -> None:
    desk = Desk(RULES)
    first, _ = workers = servers(desk)
    back, plan = lost_disk(desk, workers, 10)
    not_fetched(back, plan, reason="no space left")
    ready(back)
    ready(first, checkpoint(10, path="worker_0/10"), copies={1: [checkpoint(10, path="worker_1/10")]})
    assert job(desk).state is JobState.FAILED
    assert "rank 1: no space left" in job(desk).reason


def test_a_failure_without_a_word_is_taken_for_the_nodes_own() -> None:
    desk = Desk(RULES)
    back, plan = lost_disk(desk, servers(desk), 10)
    not_fetched(back, plan, failures=())
    assert job(desk).reason.endswith("no node was named")
    assert len(desk.machine.state.copying.not_taken) == 1


def test_a_failure_of_a_plan_that_is_over_or_that_came_all_the_same_ends_nothing() -> None:
    desk = Desk(RULES)
    back, plan = lost_disk(desk, servers(desk), 10)
    not_fetched(back, plan, gives_up=False)
    not_fetched(back, plan, generation=Generation(1))
    not_fetched(back, plan, rank=0)
    assert job(desk).state is JobState.RUNNING
    event = next(one for one in desk.events if one.kind is EventKind.COPY_FAILED)
    assert event.details == "rank 1, which came from another node"
    assert desk.machine.state.checkpoints.failed_work.not_copied == 2, "it came all the same the first time"


def test_a_damaged_file_of_its_own_is_replaced_by_a_copy() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    saved = all_copied(desk, workers, 10)[10]
    ready(first, saved[0], copies={1: [saved[1]]})
    ready(second, saved[1], copies={0: [saved[0]]})
    plan = second.follow()
    first.follow()
    second.send(
        m.CheckpointInvalid(
            request_id=second.request(), generation=plan.generation, step=10, path=plan.path, reason="rot"
        )
    )
    ready(first, saved[0], copies={1: [saved[1]]})
    ready(second, saved[1], copies={0: [saved[0]]})
    plan = second.follow()
    first.follow()
    assert (plan.step, plan.path, plan.sources) == (10, "", (source(first),))

    held = copied(saved[1], second, 1)
    second.send(m.CheckpointReport(request_id=second.request(), checkpoint=held))
    ready(second, held, saved[1])
    ready(first, saved[0])
    assert second.follow().path == held.path


def test_what_lies_among_a_nodes_own_copies_is_its_own_until_it_is_found_damaged() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    saved = all_copied(desk, workers, 10)[10]
    ready(first, saved[0])
    ready(second, copies={1: [saved[1]]})
    plan = second.follow()
    assert (plan.path, plan.sources) == (copied(saved[1], second, 1).path, ())
    assert states(desk, 10) == [CheckpointState.COMMITTED] * 2
    second.send(
        m.CheckpointInvalid(
            request_id=second.request(), generation=plan.generation, step=10, path=plan.path, reason="rot"
        )
    )
    assert held_copies(desk, CopyState.DAMAGED) == [(10, 1, "worker_1")]


def test_a_holder_that_has_not_said_what_it_holds_is_not_named() -> None:
    """A standby whose process is new: it may have lost its disk."""
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    first, second = workers = servers(desk)
    saved = all_copied(desk, workers, 10)[10]
    spare = server(desk, "spare", standby=True)
    spare.register()
    ready(spare, copies={1: [saved[1]]})
    spare.die()
    desk.at(desk.now + 600)
    spare = server(desk, "spare", standby=True)
    spare.register()
    ready(first, saved[0])
    back = is_restarting(second)
    ready(back)
    assert job(desk).state is JobState.FAILED


def test_a_standby_takes_a_rank_whose_files_others_hold() -> None:
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    first, second = workers = servers(desk)
    saved = all_copied(desk, workers, 10)[10]
    spare = server(desk, "spare", standby=True)
    spare.register()
    ready(spare)
    second.die()
    desk.at(desk.now + 600)
    offer = spare.last(m.Offer)
    spare.send(m.Ready(request_id=spare.request(), generation=Generation(0), step=0, rank=offer.rank))
    assert EventKind.RANK_TAKEN_OVER in desk.kinds()
    ready(first, saved[0], copies={1: [saved[1]]})
    assert spare.follow().sources == (source(first),)


def _lost_before_it_was_copied(desk: Desk, *, copied_before: bool) -> tuple[Worker, m.HeldCheckpoint, Worker]:
    """A host is lost behind a commit and before its copies; the other worker, and what a new host has started for the rank."""
    first, second = workers = servers(desk)
    saved = all_copied(desk, workers, 10)[10] if copied_before else [worker.save(10) for worker in workers]
    for worker in workers:
        worker.save(20)
    second.die()
    desk.at(desk.now + 600)
    came = server(desk, "worker_1.2", replaces="worker_1")
    came.register()
    ready(came)
    offer = came.last(m.Offer)
    came.send(m.Ready(request_id=came.request(), generation=Generation(0), step=0, rank=offer.rank))
    ready(
        first, saved[0], checkpoint(20, path="worker_0/20"), copies={1: [saved[1]]} if copied_before else None
    )
    return first, saved[1], came


def test_the_process_of_a_new_host_takes_the_rank_that_other_hosts_hold_at_an_earlier_step() -> None:
    desk = Desk(RULES)
    first, saved, came = _lost_before_it_was_copied(desk, copied_before=True)

    offer = came.last(m.Offer)
    came.send(m.Ready(request_id=came.request(), generation=Generation(0), step=0, rank=offer.rank))

    plan = came.follow()
    assert (plan.step, plan.digest, plan.sources) == (10, saved.digest, (source(first),))
    made = [one for one in desk.events if one.kind is EventKind.PLAN_MADE][-1]
    assert "step 20" in made.reason, "it is said what is given up"


def test_the_process_of_a_new_host_waits_for_the_lost_one_while_nothing_of_its_rank_is_elsewhere() -> None:
    desk = Desk(RULES)
    _, _, came = _lost_before_it_was_copied(desk, copied_before=False)

    assert EventKind.RANK_TAKEN_OVER not in desk.kinds()
    assert came.hears(m.Offer) == 1
    assert job(desk).state is JobState.INTERRUPTED


def test_only_a_copy_of_what_is_needed_makes_up_for_a_file() -> None:
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    _, second = workers = servers(desk)
    for worker in workers:
        worker.save(10)
    spare = server(desk, "spare", standby=True)
    spare.register()
    ready(spare)
    second.die()
    desk.at(desk.now + 600)
    assert job(desk).state is JobState.INTERRUPTED
    spare.send(
        m.Ready(request_id=spare.request(), generation=Generation(0), step=0, rank=spare.last(m.Offer).rank)
    )
    assert EventKind.TAKEOVER_DECLINED in desk.kinds()


def test_what_ranks_hold_of_another_history_is_no_copy() -> None:
    desk = Desk(RULES)
    first, second = workers = servers(desk)
    saved = all_copied(desk, workers, 10, 20)
    ready(first, saved[10][0], copies={1: saved[10][1:]})
    ready(second, saved[10][1], copies={0: saved[10][:1]})
    assert first.follow().step == 10
    second.follow()
    all_copied(desk, workers, 30)
    ready(first, saved[10][0], copies={1: [saved[20][1], saved[10][1]]})
    assert (20, 1, "worker_0") not in held_copies(desk)
