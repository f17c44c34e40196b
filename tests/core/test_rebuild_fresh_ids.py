"""A scheduler's store that was lost, in a job whose processes were started again under fresh ids: who had a rank last has it again."""

from __future__ import annotations

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, Incarnation, NodeId
from recovery.core.policy import rebuild
from recovery.core.policy.ranks import first_id, is_in_slot, slot_of
from recovery.core.records import EventKind, JobRecord, JobState, NodeRecord, ProcessRecord
from recovery.core.rules import Rules
from recovery.core.worker.job_history import of_slot
from tests.core.desk import Desk, Worker, checkpoint
from tests.core.pasts import OLD, began, pass_time, past, ready
from tests.core.test_rebuild_standbys import come, ranks

RULES = Rules(worker_count=2, rebuild_store=True)
NOTED = {"noted_by": NodeId("worker_0")}


def reason_of_the_rebuild(desk: Desk) -> str:
    [details] = [event.details for event in desk.events if event.kind is EventKind.STORE_REBUILT]
    return details


# --- what a place knows -------------------------------------------------------------------------------------------------


def test_id_that_no_later_start_is_given_is_the_first_of_its_place() -> None:
    assert first_id("worker_0.2") == "worker_0"
    assert first_id("10.0.0.1.2") == "10.0.0.1"
    for first in ("10.0.0.1", "10.0.0.20", "gpu.0", "gpu.1", "worker_0", "worker.x", ".2"):
        assert first_id(first) == first


def test_place_of_a_fresh_id_is_that_of_the_first() -> None:
    assert slot_of("worker_0.3", "worker_0.2") == slot_of("worker_0.2", "worker_0") == "worker_0"
    assert slot_of("10.0.0.1", "") == "10.0.0.1", "an address names a place of its own"
    assert slot_of("10.0.0.1.2", "10.0.0.1") == "10.0.0.1"
    assert [
        is_in_slot(name, "worker_0") for name in ("worker_0", "worker_0.7", "worker_1", "worker_0.x")
    ] == [
        True,
        True,
        False,
        False,
    ]


def test_place_knows_what_its_newest_id_knew_and_where_all_plans_began() -> None:
    older = past(0, 10, generation=2, incarnation=Incarnation(9))
    newer = past(0, 10, 20, generation=5)
    known = of_slot(None, {NodeId("worker_0"): older, NodeId("worker_0.2"): newer})
    assert known is not None
    assert (known.generation, known.noted_by, known.saved_step) == (5, "worker_0.2", 20)
    assert known.began == (began(2, 0), began(5, 0))
    assert known.incarnation == 9, "numbers only rise"
    assert of_slot(None, {}) is None


def test_notes_of_another_rank_say_nothing_of_what_this_one_saved() -> None:
    known = of_slot(past(0, 10, generation=5), {NodeId("worker_0.2"): past(1, 40, generation=3)})
    assert known is not None
    assert (known.rank, known.saved_step, known.noted_by) == (0, 10, "")


def test_worker_whose_name_looks_like_a_later_id_of_another_one_keeps_its_rank_to_itself() -> None:
    beside = past(1, 40, generation=5)
    later = msgspec.structs.replace(beside, generation=Generation(6), began=(*beside.began, began(6, 40)))
    assert of_slot(past(0, 10, generation=5), {NodeId("gpu.2"): later}) == past(0, 10, generation=5)


def test_notes_of_another_job_or_an_older_run_count_nowhere() -> None:
    other = past(1, 40, generation=9, job="a third job")
    known = of_slot(past(0, 10, generation=5), {NodeId("worker_0.2"): other})
    assert known == past(0, 10, generation=5)


# --- who has the rank ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pasts", "holder"),
    [
        ({"worker_0": {}, "worker_0.2": NOTED}, "worker_0"),
        ({"worker_0.2": {"noted_by": NodeId("worker_0.1")}, "worker_0.10": NOTED}, "worker_0.10"),
    ],
    ids=["who held it itself", "else who was started last"],
)
def test_of_the_processes_of_one_place_one_has_the_rank(
    pasts: dict[str, dict[str, object]], holder: str
) -> None:
    known = {NodeId(name): past(0, 10, generation=5, **changes) for name, changes in pasts.items()}
    built = rebuild.rebuild({**known, NodeId("worker_1"): past(1, 10, generation=5)})
    assert isinstance(built, rebuild.Rebuilt)
    assert built.ranks == {holder: 0, "worker_1": 1}


def test_fresh_id_goes_on_from_what_its_place_knows() -> None:
    desk = Desk(RULES)
    fresh = Worker(desk, "worker_0.3", replaces="worker_0.2")
    assert isinstance(fresh.register(), m.Admitted)
    [other] = come(desk, "worker_1")
    ready(fresh, past(0, 10, 20, generation=5, noted_by=NodeId("worker_0.2")))
    ready(other, past(1, 10, 20, generation=5))
    assert fresh.last(m.Rollback).step == 20
    assert ranks(desk) == {"worker_0.3": 0, "worker_1": 1}
    assert desk.machine.state.nodes[NodeId("worker_0.3")].slot == "worker_0", (
        "its launcher calls the place so"
    )


def test_generation_that_only_a_standby_knows_is_not_given_again() -> None:
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    first, second, waits = come(desk, "worker_0", "worker_1", "s0")
    waits.send(m.Ready(request_id=waits.request(), generation=Generation(7), step=0, held=()))
    ready(first, None)
    ready(second, None)
    assert first.last(m.Rollback).generation == 8


def test_second_process_of_a_place_is_never_sent_to_the_file_of_another_rank() -> None:
    desk = Desk(RULES)
    first, second = come(desk, "worker_0", "worker_0.2")
    held = (checkpoint(20, generation=5, path="0/20"), checkpoint(10, generation=3, path="0/10"))
    ready(first, past(0, generation=5, began=(began(3, 0), began(5, 10)), held=held, saved_step=20))
    ready(second, past(0, 10, generation=3))
    pass_time(desk, RULES.lease_ms, first, second)
    assert second.hears(m.Rollback) == 0, "nobody here knows a file of rank 1"
    [job] = desk.row(JobRecord)
    assert job.state is JobState.FAILED
    assert "no step is held by all 2 ranks" in job.reason


# --- who may know more is waited for ------------------------------------------------------------------------------------


def known_only_in_part(desk: Desk) -> list[Worker]:
    """Both slots are taken, one by the process whose rank another took over."""
    workers = come(desk, "worker_0", "worker_1")
    held = (checkpoint(20, generation=5, path="0/20"), checkpoint(10, generation=3, path="0/10"))
    ready(workers[0], past(0, generation=5, began=(began(3, 0), began(5, 10)), held=held, saved_step=20))
    ready(workers[1], past(1, 10, generation=3))
    assert desk.row(JobRecord)[0].state is JobState.FORMING, "who held rank 1 after generation 3 may come"
    return workers


def test_who_knows_more_of_a_rank_has_one_lease_to_come_and_has_it_again() -> None:
    desk = Desk(RULES)
    _, replaced = known_only_in_part(desk)
    fresh = Worker(desk, "worker_3.2", replaces="worker_3")
    assert isinstance(fresh.register(), m.Admitted), "while a store is built again everybody is heard"
    ready(fresh, past(1, 10, 20, generation=5))
    assert fresh.last(m.Rollback).step == 20
    assert replaced.hears(m.Rollback) == 0
    assert ranks(desk) == {"worker_0": 0, "worker_1": None, "worker_3.2": 1}
    assert desk.machine.state.nodes[NodeId("worker_3.2")].slot == "worker_3", (
        "its launcher starts it again by that name"
    )


def test_when_nobody_comes_the_older_state_is_taken_and_said() -> None:
    desk = Desk(RULES)
    first, second = known_only_in_part(desk)
    pass_time(desk, RULES.lease_ms, first, second)
    assert second.last(m.Rollback).step == 10
    assert "rank 1 is known only up to generation 3 of 5" in reason_of_the_rebuild(desk)


def test_who_has_held_a_rank_sits_down_where_a_slot_is_empty() -> None:
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    [first] = come(desk, "0")
    waits = Worker(desk, "standby_0", standby=True, job=OLD)
    waits.generation = Generation(5)
    assert isinstance(waits.register(), m.Admitted)
    ready(first, past(0, 10, generation=5))
    ready(waits, past(1, 10, generation=5))
    assert waits.last(m.Rollback).rank == 1


def test_a_standby_alone_waits_for_how_the_others_are_called() -> None:
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    [waits] = come(desk, "s0")
    ready(waits, past(1, 10, generation=5))
    assert desk.machine.state.nodes[NodeId("s0")].is_standby
    [first] = come(desk, "0")
    ready(first, past(0, 10, generation=5))
    pass_time(desk, RULES.lease_ms, waits, first)
    assert waits.last(m.Rollback).rank == 1


def test_lost_id_whose_name_is_taken_sits_under_another() -> None:
    desk = Desk(RULES)
    fresh = Worker(desk, "worker_0.2", replaces="worker_0")
    assert isinstance(fresh.register(), m.Admitted)
    earlier, other = come(desk, "worker_0", "worker_1")
    ready(earlier, past(0, 10, generation=3))
    ready(other, past(1, 10, generation=5))
    ready(fresh, past(0, 10, 20, generation=5))
    assert ranks(desk) == {"worker_0": None, "worker_0.2": 0, "worker_1": 1}


@pytest.mark.parametrize(
    ("ids", "pasts", "names"),
    [
        (("worker_0", "worker_0.2"), (1, 0), ("worker_0", "worker_0.2")),
        (("worker_0.3", "worker_0.2"), (1, 0), ("worker_0", "worker_0.2")),
        (("worker_0.2", "worker_1"), (0, 1), ("worker_0", "worker_1")),
    ],
    ids=["a member has another place of that name", "one name for two", "each has its own"],
)
def test_no_two_slots_have_one_name_and_none_that_of_a_member_of_another_one(
    ids: tuple[str, str], pasts: tuple[int, int], names: tuple[str, str]
) -> None:
    desk = Desk(RULES)
    workers = [Worker(desk, name, replaces="worker_0" if "." in name else "") for name in ids]
    for one in workers:
        assert isinstance(one.register(), m.Admitted)
    for one, rank in zip(workers, pasts, strict=True):
        ready(one, past(rank, 10, generation=5))
    assert tuple(desk.machine.state.nodes[NodeId(name)].slot for name in ids) == names
    assert ranks(desk) == dict(zip(ids, pasts, strict=True))


# --- afterwards ---------------------------------------------------------------------------------------------------------


def test_process_stays_known_under_its_next_number() -> None:
    desk = Desk(RULES)
    process = m.ProcessIdentity(boot_id="b", pid_namespace=1, start_ticks=7)
    workers = [Worker(desk, f"worker_{rank}", process=process) for rank in range(2)]
    for worker in workers:
        worker.register()
    for rank, worker in enumerate(workers):
        ready(worker, past(rank, 10))
    newest = {row.node_id: row.incarnation for row in desk.row(NodeRecord)}
    assert newest == {"worker_0": 4, "worker_1": 4}
    assert {(row.node_id, row.incarnation) for row in desk.row(ProcessRecord)} >= set(newest.items())
    desk.restart()
    assert desk.machine.state.nodes[NodeId("worker_0")].process == process


def test_standby_that_is_given_up_before_it_came_ends_no_job_that_is_built_again() -> None:
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    gives_up = m.Exited(node_id=NodeId("s0"), pid=1, reason="killed", gives_up=True)
    desk.say(desk.connect(), gives_up)
    assert desk.row(JobRecord)[0].state is JobState.FORMING


def test_successor_is_let_in_beside_standbys_that_cannot_read_the_files() -> None:
    desk = Desk(RULES)
    first, replaced = known_only_in_part(desk)
    fresh = Worker(desk, "worker_3")
    fresh.register()
    ready(fresh, past(1, 10, 20, generation=5))
    fresh.die()
    pass_time(desk, 40_000, first, replaced)
    again = Worker(desk, "worker_3.2", replaces="worker_3")
    assert isinstance(again.register(), m.Admitted), "worker_1 waits, and is not of that place"
    once_more = Worker(desk, "worker_3.3", replaces="worker_3")
    refused = once_more.register()
    assert isinstance(refused, m.Refused)
    assert refused.code == "WORLD_FULL"


def test_second_processes_of_standbys_take_no_place_that_a_worker_needs() -> None:
    desk = Desk(msgspec.structs.replace(RULES, standby_count=1))
    first, second = come(desk, "worker_0", "worker_1")
    waits = Worker(desk, "worker_1.2", replaces="worker_1")
    assert isinstance(waits.register(), m.Admitted)
    for one in (second, waits):
        one.die()
    pass_time(desk, 70_000, first)
    for name in ("s0", "s0.2", "s1"):
        [standby] = come(desk, name)
        ready(standby, None)
    successor = Worker(desk, "worker_1.3", replaces="worker_1.2")
    assert isinstance(successor.register(), m.Admitted)
    ready(first, None)
    ready(successor, None)
    assert ranks(desk)["worker_1.3"] == 1


def test_a_second_process_of_a_place_begins_no_job_in_the_place_of_a_worker_that_is_still_to_come() -> None:
    desk = Desk(RULES)
    [first] = come(desk, "worker_1")
    second = Worker(desk, "worker_1.2", replaces="worker_1")
    assert isinstance(second.register(), m.Admitted)
    for one in (first, second):
        ready(one, None)
    assert desk.machine.state.job.state is JobState.FORMING
    first.die()
    pass_time(desk, 70_000, second)
    [late] = come(desk, "worker_0")
    ready(late, None)
    assert {name for name, rank in ranks(desk).items() if rank is not None} == {"worker_0", "worker_1.2"}
