"""Bugs in what a process knows of its own memory: what it offers to others after a loss."""

from __future__ import annotations

from tests.planted.bug import Bug

SURVIVORS = (
    Bug(
        "a state in the middle of an optimizer's step is given",
        "I30",
        "torch/live_hooks.py",
        'self.torn = self.torn or f"{type(optimizer).__name__} had begun its step"',
        "pass",
        ("tests/torch/test_live_rollback.py::test_survivor_that_is_not_clean_offers_nothing_and_says_why",),
    ),
)
