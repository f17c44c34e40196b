"""The layout follows the state, and one that was asked for and does not fit is refused."""

from __future__ import annotations

import logging

import pytest

from recovery import ModelCheckpoint
from recovery.checkpoint.contribution import FileRole, Layout
from recovery.errors import SettingError, UsageError
from recovery.training import checkpoint_layout


class Whole:
    """A state that says nothing of its layout."""


class Spread:
    """One that is spread over the ranks."""

    sharded = True


@pytest.mark.parametrize(
    ("asked", "state", "integrated", "expected"),
    [
        (None, Whole(), True, Layout.RANK),
        (None, Whole(), False, Layout.SHARDED),
        (None, Spread(), True, Layout.SHARDED),
        ("sharded", Spread(), True, Layout.SHARDED),
        ("rank", Whole(), True, Layout.RANK),
    ],
)
def test_the_state_tells(
    caplog: pytest.LogCaptureFixture, asked: str | None, state: object, integrated: bool, expected: Layout
) -> None:
    with caplog.at_level(logging.INFO, "recovery.training"):
        assert checkpoint_layout.choose(asked, state, integrated=integrated) is expected
    decided_alone = asked is None and isinstance(state, Spread)
    assert ("event=layout_chosen layout=sharded" in caplog.text) == decided_alone
    role = FileRole.STATE if expected is Layout.RANK else FileRole.SHARD
    assert checkpoint_layout.role_in(expected) is role


@pytest.mark.parametrize(("asked", "state"), [("rank", Spread()), ("sharded", Whole())])
def test_a_layout_that_does_not_fit_is_refused(asked: str, state: object) -> None:
    with pytest.raises(UsageError, match="spread over the ranks"):
        checkpoint_layout.choose(asked, state, integrated=True)


def test_a_layout_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match=r"SETTING_RANGE: .*layout"):
        ModelCheckpoint("train", layout="shard")
