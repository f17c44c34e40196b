"""Who holds copies of whose checkpoints, which may go, and what the index says of them."""

from __future__ import annotations

import itertools

import pytest

from recovery.core.copy_index import CopyIndex, Steps
from recovery.core.copy_records import CopyState
from recovery.core.held import HeldCopy
from recovery.core.ids import Generation, NodeId, Rank
from recovery.core.policy.copies import COPIES_BY_ITSELF, count, holders, who_fetches
from recovery.core.policy.message_share import FRAME_SHARE, copies_that_fit
from recovery.core.policy.retention import copy_is_needed
from recovery.core.records import to_held
from recovery.core.scheduler.copy_state import Copying
from tests.core.desk import checkpoint
from tests.core.test_checkpoint_index import began


@pytest.mark.parametrize(
    ("wanted", "hosts", "copies"),
    [
        (None, 3, COPIES_BY_ITSELF),
        (None, 1, 0),
        (None, 0, 0),
        (0, 5, 0),
        (1, 2, 1),
        (2, 2, 1),
        (8, 9, 8),
        (3, 1, 0),
    ],
)
def test_how_many_copies_there_are(wanted: int | None, hosts: int, copies: int) -> None:
    assert count(wanted, hosts) == copies


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2, 2), (4, 1, 3), (1, 2), (8,)])
def test_every_copy_is_on_another_host_and_no_two_are_on_one(sizes: tuple[int, ...]) -> None:
    numbers = itertools.count()
    hosts = {Rank(next(numbers)): f"host-{index}" for index, size in enumerate(sizes) for _ in range(size)}
    for copies in range(len(sizes)):
        found = holders(hosts, copies)
        assert found.keys() == hosts.keys()
        for rank, of_rank in found.items():
            places = [hosts[holder] for holder in of_rank]
            assert len(set(places) | {hosts[rank]}) == copies + 1
        load = [sum(rank in of_rank for of_rank in found.values()) for rank in hosts]
        if len(set(sizes)) == 1:
            assert set(load) == {copies}


def test_the_ring_goes_by_the_numbers_in_the_names() -> None:
    hosts = {Rank(0): "host-10", Rank(1): "host-2", Rank(2): "host-1"}
    assert holders(hosts, 1) == {Rank(2): (1,), Rank(1): (0,), Rank(0): (2,)}


def test_which_copies_a_plan_can_still_go_to() -> None:
    began = [(Generation(1), 0), (Generation(3), 20)]
    assert copy_is_needed(checkpoint(20, generation=1), oldest=20, oldest_in_memory=40, began=began)
    assert not copy_is_needed(checkpoint(30, generation=1), oldest=20, oldest_in_memory=40, began=began)
    assert not copy_is_needed(checkpoint(30, generation=2), oldest=20, oldest_in_memory=40, began=began)
    assert copy_is_needed(checkpoint(30, generation=3), oldest=20, oldest_in_memory=40, began=began)
    assert not copy_is_needed(checkpoint(10, generation=1), oldest=20, oldest_in_memory=40, began=began)
    memory = "/dev/shm/recovery-memory-0-a/w.copies.run-1.rank-0/x"
    for step, is_kept in ((30, False), (40, True)):
        copy = checkpoint(step, generation=3, path=memory)
        assert copy_is_needed(copy, oldest=20, oldest_in_memory=40, began=began) is is_kept


def test_who_fetches_is_named_up_to_a_bound() -> None:
    assert who_fetches([]) == []
    [few] = who_fetches([(Rank(1), "a, b")])
    assert few == "rank 1 loads the copy of a, b"
    [many] = who_fetches([(Rank(rank), "a") for rank in range(10)])
    assert many.endswith("rank 7 loads the copy of a, and 2 more ranks load copies")


def test_a_message_names_as_many_copies_as_its_share_carries_the_committed_ones_first() -> None:
    held = [
        HeldCopy(rank=Rank(rank), checkpoint=checkpoint(step, path=f"{rank}/{step}"))
        for step in (10, 20, 30)
        for rank in (0, 1)
    ]
    everything = copies_that_fit(held, committed_step=20, frame_bytes_max=1_048_576)
    assert [(one.checkpoint.step, one.rank) for one in everything] == [
        (30, 0), (30, 1), (20, 0), (20, 1), (10, 0), (10, 1),
    ]  # fmt: skip
    few = copies_that_fit(held, committed_step=20, frame_bytes_max=350 * FRAME_SHARE)
    assert [(one.checkpoint.step, one.rank) for one in few] == [(30, 0), (20, 0), (20, 1)]


def test_a_copy_that_was_damaged_counts_again_when_it_was_made_again() -> None:
    index, holder, held = CopyIndex(Steps()), NodeId("w1"), checkpoint(10, path="w1/copies/10")
    index.add(holder, Rank(0), held)
    assert index.reject(NodeId("w2"), Rank(0), 10, "rot") is None
    row = index.reject(holder, Rank(0), 10, "rot")
    assert row is not None
    assert (row.state, row.reason) == (CopyState.DAMAGED, "rot")
    assert index.replace(holder, [HeldCopy(rank=Rank(0), checkpoint=held)]) == []
    assert index.steps_of(Rank(0)) == []

    assert index.add(holder, Rank(0), held).state is CopyState.HELD
    assert index.replace(holder, [HeldCopy(rank=Rank(0), checkpoint=held)]) == []
    assert index.records() == [index.add(holder, Rank(0), held)]
    [gone] = index.replace(holder, [])
    assert gone.state is CopyState.GONE
    assert index.records() == []


def test_one_copy_of_each_contribution_stands_for_all() -> None:
    index = CopyIndex(Steps())
    for name, rank, step in (("w1", 0, 10), ("w2", 0, 10), ("w1", 1, 20)):
        index.add(NodeId(name), Rank(rank), checkpoint(step, path=f"{name}/{step}"))
    found = {step: {rank: one.path for rank, one in of.items()} for step, of in index.one_of_each().items()}
    assert found == {10: {0: "w1/10"}, 20: {1: "w1/20"}}
    assert index.steps_of(Rank(0)) == [10]


def test_the_index_begins_with_what_is_stored_of_the_lineage() -> None:
    index, again = CopyIndex(Steps()), CopyIndex(Steps())
    rows = [index.add(NodeId("w1"), Rank(0), checkpoint(step, path=f"{step}")) for step in (10, 20)]
    bad = index.reject(NodeId("w1"), Rank(0), 10, "rot")
    assert bad is not None
    again.load([bad, *rows[1:], *index.retire(30, 0)], ())
    assert again.steps_of(Rank(0)) == [20]
    assert again.replace(NodeId("w1"), [HeldCopy(rank=Rank(0), checkpoint=to_held(rows[0]))])[0].step == 20
    assert again.steps_of(Rank(0)) == []


def test_a_stored_copy_of_a_rolled_back_suffix_is_not_loaded() -> None:
    index = CopyIndex(Steps())
    rows = [index.add(NodeId("w1"), Rank(0), checkpoint(step, path=f"{step}")) for step in (10, 20)]
    again = CopyIndex(Steps())
    again.load(rows, [began(1, 0), began(2, 10)])
    assert again.steps_of(Rank(0)) == [10]


def test_the_two_newest_copied_steps_are_told_apart() -> None:
    copying = Copying()
    assert (copying.copied_step, copying.oldest) == (0, 0)
    for step in (10, 20, 30, 30, 20):
        copying.note_copied(step, in_memory=False)
    assert (copying.copied_step, copying.oldest) == (30, 20)
