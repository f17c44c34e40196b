"""What an error says of a plan or a training stands behind what is wrong, and can be left out where there is neither."""

from __future__ import annotations

import pytest

from recovery import errors

RAISED = [
    errors.CheckpointError("CHECKPOINT_MISSING", path="p"),
    errors.CheckpointDigestError(path="p", field="size", expected=1, found=2),
    errors.CheckpointManifestError(path="p", reason="r"),
    errors.CheckpointWriteError(path="p", reason="r"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: error.code)
def test_a_consequence_is_the_end_of_its_text(error: errors.RecoveryError) -> None:
    consequence = error.row.consequence
    assert consequence
    assert str(error).endswith(consequence)
    assert str(error).removesuffix(consequence) + "." == error.fact
    error.args = (error.fact,)
    assert str(error) == error.fact, "left out once, not twice"


def test_every_error_that_speaks_of_a_plan_or_a_training_names_its_consequence() -> None:
    speaks = {
        row.code
        for row in errors.ROWS.values()
        if "the plan goes back" in row.template.lower() or "training goes on;" in row.template
    }
    assert speaks == {row.code for row in errors.ROWS.values() if row.consequence}
    assert speaks == {error.code for error in RAISED}


def test_an_error_without_one_says_all() -> None:
    error = errors.UsageError(field="f", reason="r", next_step="Do it.")
    assert error.fact == str(error)
