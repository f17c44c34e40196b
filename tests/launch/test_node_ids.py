"""Under which node id a process is started again."""

from __future__ import annotations

from recovery.core.ids import NodeId
from recovery.launch.node_ids import NodeIds


def ids(first: str = "worker_0", *, fresh: bool = True) -> NodeIds:
    return NodeIds(NodeId(first), fresh=fresh)


def test_the_first_start_has_the_id_that_it_was_placed_with() -> None:
    assert (ids().current, ids().variables) == ("worker_0", {})


def test_each_start_after_a_member_has_an_id_of_its_own_and_replaces_the_newest() -> None:
    ours = ids()
    assert not ours.begin_next(2, was_member=True)
    assert ours.variables == {"MS_NODE_ID": "worker_0.2", "MS_REPLACES": "worker_0"}
    ours.begin_next(3, was_member=True)
    assert ours.variables == {"MS_NODE_ID": "worker_0.3", "MS_REPLACES": "worker_0.2"}


def test_a_process_that_was_never_let_in_leaves_its_id_to_the_next() -> None:
    ours = ids()
    ours.begin_next(2, was_member=False)
    assert ours.variables == {}
    ours.begin_next(3, was_member=True)
    ours.begin_next(4, was_member=False)
    assert ours.variables == {"MS_NODE_ID": "worker_0.3", "MS_REPLACES": "worker_0"}


def test_where_nobody_knows_the_first_is_taken_for_a_member_and_a_later_one_is_not() -> None:
    ours = ids()
    ours.begin_next(2, was_member=None)
    assert ours.variables == {"MS_NODE_ID": "worker_0.2", "MS_REPLACES": "worker_0"}
    ours.begin_next(3, was_member=None)
    assert ours.current == "worker_0.2"


def test_an_id_that_an_earlier_launcher_has_used_is_not_given_again() -> None:
    ours = ids()
    ours.begin_next(2, was_member=True, taken={"worker_0", "worker_0.2", "worker_0.3"})
    assert ours.current == "worker_0.4"


def test_the_first_start_replaces_what_an_earlier_launcher_has_left_behind() -> None:
    ours = ids()
    assert not ours.begin_after(NodeId("worker_0"), taken={"worker_0", "worker_0.2"})
    assert ours.variables == {"MS_NODE_ID": "worker_0.3", "MS_REPLACES": "worker_0"}
    ours.begin_next(2, was_member=True, taken={"worker_0", "worker_0.2", "worker_0.3"})
    assert ours.variables == {"MS_NODE_ID": "worker_0.4", "MS_REPLACES": "worker_0.3"}

    same = ids(fresh=False)
    assert not same.begin_after(NodeId("worker_0"), taken={"worker_0"})
    assert same.variables == {}


def test_who_keeps_its_id_keeps_it() -> None:
    ours = ids(fresh=False)
    assert not ours.begin_next(2, was_member=True)
    assert ours.variables == {}


def test_an_id_that_would_be_too_long_is_not_made_and_a_person_is_told() -> None:
    longest = "h" * 62
    fits, does_not = ids(longest), ids(longest + "h")
    assert not fits.begin_next(2, was_member=True)
    assert fits.current == f"{longest}.2"

    said = does_not.begin_next(2, was_member=True)
    assert f"its next node id would be {longest}h.2, which is longer than the 64 characters" in said
    assert "MS_REJOIN_WINDOW" in said
    assert does_not.variables == {}
