"""What an error says of a plan or a training stands behind what is wrong, and can be left out where there is neither."""

from __future__ import annotations

import pytest

from recovery import errors
from tests.house.error_classes import error_classes

WITH_CONSEQUENCE = [kind for kind in error_classes() if kind.consequence]


@pytest.mark.parametrize("kind", WITH_CONSEQUENCE, ids=lambda kind: kind.code)
def test_a_consequence_is_the_end_of_its_text(kind: type[errors.RecoveryError]) -> None:
    parts = {"path": "p", "reason": "r", "field": "size", "expected": 1, "found": 2}
    error = kind(**parts)
    assert str(error).endswith(kind.consequence)
    assert str(error).removesuffix(kind.consequence) + "." == error.fact
    error.args = (error.fact,)
    assert str(error) == error.fact, "left out once, not twice"


def test_every_error_that_speaks_of_a_plan_or_a_training_names_its_consequence() -> None:
    speaks = [
        kind
        for kind in error_classes()
        if "the plan goes back" in kind.template.lower() or "training goes on;" in kind.template
    ]
    assert {kind.code for kind in speaks} == {kind.code for kind in WITH_CONSEQUENCE} != set()


def test_an_error_without_one_says_all() -> None:
    error = errors.UsageError(field="f", reason="r", next_step="Do it.")
    assert error.fact == str(error)
