"""Which lost nodes' processes hang: the way to the scheduler was free, and they did not come back."""

from __future__ import annotations

from collections.abc import Mapping

from recovery.launch.hung_nodes import HungNodes, LostNode, LostNodes

HUNG = LostNode(node_id="1", pid=11, reason="silent for 4.1 s")


def answer(*nodes: LostNode, returns_ms: int = 9_000) -> LostNodes:
    return LostNodes(returns_ms=returns_ms, nodes=nodes)


def overdue_after(overdue: HungNodes, answers: Mapping[int, LostNodes | None]) -> dict[int, list[str]]:
    """What is overdue at each second."""
    found = {second: overdue.note(said, second * 1_000) for second, said in answers.items()}
    return {second: [node.node_id for node in nodes] for second, nodes in found.items() if nodes}


def test_a_node_that_is_lost_while_the_way_was_free_all_the_time_hangs() -> None:
    answers = {second: answer(*([HUNG] if second >= 20 else [])) for second in range(26)}

    assert overdue_after(HungNodes(), answers) == {23: ["1"], 24: ["1"], 25: ["1"]}


def test_a_node_that_was_lost_while_its_host_was_cut_off_has_time_to_come_back() -> None:
    """Its process is well: it dials as soon as the way is free."""
    cut = dict.fromkeys(range(10, 20))
    back = {second: answer(HUNG) for second in range(20, 28)}
    answers = {**{second: answer() for second in range(10)}, **cut, **back, 28: answer(), 29: answer()}

    assert overdue_after(HungNodes(), answers) == {}


def test_a_node_that_does_not_come_back_after_a_cut_hangs() -> None:
    answers = {0: answer(), 1: None, **{second: answer(HUNG) for second in range(2, 13)}}

    assert overdue_after(HungNodes(), answers) == {11: ["1"], 12: ["1"]}


def test_a_host_that_was_paused_begins_again() -> None:
    before = {second: answer() for second in range(20)}
    after = {second: answer(HUNG) for second in range(40, 48)}

    assert overdue_after(HungNodes(), {**before, **after}) == {}


def test_the_next_incarnation_of_a_lost_node_is_another_process() -> None:
    again = LostNode(node_id="1", pid=12, reason="silent")
    answers = {**{second: answer(HUNG) for second in range(20)}, 20: answer(again), 21: answer(again)}

    assert [second for second in overdue_after(HungNodes(), answers) if second >= 20] == []
