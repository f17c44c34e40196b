"""An error quotes names, paths and what a decoder says of a foreign file; a terminal gets none of their control characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import Cause, SettingError, UsageError


@pytest.mark.parametrize("quoted", ["a\nb", "\x1b[2J", "\u202efdp.exe", "\ud800", "\x00"], ids=ascii)
def test_what_an_error_quotes_is_printed_escaped(quoted: str) -> None:
    error = UsageError(field=f"file {quoted}", reason="is none", next_step="Größe 模型 stay.")

    assert str(error).isprintable()
    assert quoted.encode("unicode_escape").decode() in str(error)
    assert "Größe 模型 stay." in str(error)
    assert error.parts["field"] == f"file {quoted}"


def test_a_path_and_a_choice_are_printed_as_they_are_typed() -> None:
    error = SettingError(
        "SETTING_RANGE", field="--log_dir", value=Path("a/b"), rule="is a file", next_step="Give another."
    )
    chosen = SettingError(
        "SETTING_RANGE", field="--restart", value=Cause.SCRIPT, rule="is one", next_step="Give another."
    )

    assert str(error) == f"{error.code}: --log_dir='a/b': is a file. Give another."
    assert "--restart='script'" in str(chosen)
    assert error.parts["value"] == Path("a/b")
