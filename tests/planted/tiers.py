"""Bugs where tiers, copies and a lost store meet: a job is started over, or a copy that is there counts for nothing."""

from __future__ import annotations

from tests.planted.bug import Bug

_FOUND = "tests/core/test_copies_found_again.py"

TIERS = (
    Bug(
        "a rebuilt store knows no copies",
        "I27",
        "core/scheduler/lost_store.py",
        "take_up",
        "rows += _take_up_copies(state, pasts)",
        "",
        (f"{_FOUND}::test_copies_of_a_job_whose_store_is_lost_are_taken_up",),
    ),
    Bug(
        "copies of a place stay those of an id that has it no more",
        "I19",
        "core/scheduler/checkpoint_messages.py",
        "_note_copies",
        "rows += state.copies.replace(name, (), reason)",
        "pass",
        (f"{_FOUND}::test_copies_of_a_place_are_those_of_the_fresh_id_that_has_it",),
    ),
)
