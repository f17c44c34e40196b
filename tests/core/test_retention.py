"""Which files may go, checked against a second implementation that walks the rules one sentence at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.core.policy.retention import Kept, kept_in_memory, removable
from tests.core.desk import checkpoint


def _dumb(held: list[Kept], committed: int, keep: int, minutes: int) -> set[int]:
    """Every step on its own, by counting."""
    gone = set()
    last_kept_s: float | None = None
    for step in sorted(kept.step for kept in held):
        (saved_s,) = [kept.saved_wall_s for kept in held if kept.step == step]
        newer = len([kept for kept in held if kept.step > step])
        if keep > 0:
            rule_lets_go = newer >= keep
        elif minutes > 0 and last_kept_s is not None and last_kept_s <= saved_s < last_kept_s + 60 * minutes:
            rule_lets_go = True
        else:
            rule_lets_go = False
            last_kept_s = saved_s
        if rule_lets_go and committed > step:
            gone.add(step)
    return gone


_HELD = st.lists(
    st.builds(Kept, st.integers(1, 40), st.integers(-600, 6_000).map(float)),
    max_size=15,
    unique_by=lambda kept: kept.step,
)
_SMALL = st.integers(0, 8)


@given(_HELD, st.integers(0, 45), _SMALL, _SMALL)
def test_both_implementations_agree(held: list[Kept], committed: int, keep: int, minutes: int) -> None:
    gone = removable(
        held,
        previous_durable_step=committed,
        keep_checkpoint_max=keep,
        keep_checkpoint_per_n_minutes=minutes,
    )

    assert set(gone) == _dumb(held, committed, keep, minutes)
    assert list(gone) == sorted(gone), "oldest first"


@given(_HELD, st.integers(0, 45), _SMALL, _SMALL)
def test_the_older_of_the_two_newest_committed_steps_and_all_newer_ones_stay(
    held: list[Kept], committed: int, keep: int, minutes: int
) -> None:
    gone = removable(
        held, previous_durable_step=committed, keep_checkpoint_max=keep, keep_checkpoint_per_n_minutes=minutes
    )

    assert all(step < committed for step in gone)


@given(_HELD, st.integers(0, 45), _SMALL, _SMALL)
def test_what_stays_once_stays_when_asked_again(
    held: list[Kept], committed: int, keep: int, minutes: int
) -> None:
    def ask(these: list[Kept]) -> tuple[int, ...]:
        return removable(
            these,
            previous_durable_step=committed,
            keep_checkpoint_max=keep,
            keep_checkpoint_per_n_minutes=minutes,
        )

    gone = ask(held)

    assert ask([kept for kept in held if kept.step not in gone]) == ()


def _ask(held: list[tuple[int, float]], committed: int, keep: int = 0, minutes: int = 0) -> tuple[int, ...]:
    return removable(
        [Kept(step, saved_s) for step, saved_s in held],
        previous_durable_step=committed,
        keep_checkpoint_max=keep,
        keep_checkpoint_per_n_minutes=minutes,
    )


_FIVE = [(100, 0.0), (200, 30.0), (300, 60.0), (400, 90.0), (500, 120.0)]


@pytest.mark.parametrize(
    ("committed", "keep", "gone"),
    [
        (500, 2, (100, 200, 300)),
        (400, 2, (100, 200, 300)),
        (300, 2, (100, 200)),
        (100, 2, ()),
        (0, 2, ()),
        (500, 5, ()),
        (500, 6, ()),
        (500, 1, (100, 200, 300, 400)),
        (500, 0, ()),
    ],
)
def test_the_newest_so_many_stay(committed: int, keep: int, gone: tuple[int, ...]) -> None:
    assert _ask(_FIVE, committed, keep=keep) == gone


def test_one_per_so_many_minutes_stays_and_the_stretch_ends_exactly() -> None:
    assert _ask(_FIVE, 500, minutes=1) == (200, 400)
    assert _ask([(1, 0.0), (2, 59.999), (3, 60.0)], 3, minutes=1) == (2,)


def test_the_number_wins_over_the_minutes() -> None:
    assert _ask(_FIVE, 500, keep=4, minutes=1) == (100,)


def test_a_clock_that_was_set_back_lets_nothing_go() -> None:
    assert _ask([(1, 86_400.0), (2, 10.0), (3, 20.0), (4, 5.0)], 4, minutes=1) == (3,)


def test_a_committed_step_that_this_rank_lacks_still_guards_the_newer_ones() -> None:
    assert _ask([(100, 0.0), (300, 0.0)], 200, keep=1) == (100,)


def test_nothing_held_is_nothing_removed() -> None:
    assert _ask([], 100, keep=2) == ()


def test_what_lies_on_other_hosts_stays_on_its_owners_disk() -> None:
    held = [Kept(step, 0.0) for step in (10, 20, 30, 40, 50)]
    gone = removable(
        held,
        previous_durable_step=40,
        keep_checkpoint_max=1,
        keep_checkpoint_per_n_minutes=0,
        pinned=(10, 30),
    )
    assert gone == (20,)


@pytest.mark.parametrize(
    ("held", "committed", "on_disks", "pinned", "stays"),
    [
        ((40, 30, 20), 40, 0, (), [40]),
        ((40, 30, 20), 30, 0, (), [40, 30]),
        ((40, 30, 20), 20, 0, (), [40, 30, 20]),
        ((40, 30, 20), 0, 0, (), [40, 30]),
        ((40, 30, 20), 40, 50, (), []),
        ((40, 30, 20), 30, 40, (), [40]),
        ((40, 30, 20), 40, 50, (20,), [20]),
        ((40, 30, 20), 40, 0, (40, 20), [40, 20]),
        ((), 40, 0, (), []),
    ],
)
def test_memory_holds_what_a_plan_may_go_to_and_no_more(
    held: tuple[int, ...], committed: int, on_disks: int, pinned: tuple[int, ...], stays: list[int]
) -> None:
    kept = kept_in_memory(
        [checkpoint(step) for step in held], committed_step=committed, newest_on_disks=on_disks, pinned=pinned
    )
    assert [one.step for one in kept] == stays
