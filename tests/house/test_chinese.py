"""The page about MindSpore says the same in Chinese: as many rows, and in each the same errors with their exit codes."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from recovery import errors
from tests.house.files import ROOT

ENGLISH = ROOT / "docs" / "howto" / "from_mindspore.md"
CHINESE = ROOT / "docs" / "zh" / "howto" / "from_mindspore.md"
_NAMED = re.compile(r"`([A-Z]+(?:_[A-Z]+)*)`(?: ?\(|, ?)(\d\d)\b")
"""An error and its exit code: `WORLD_FULL` (78)."""


def _errors_by_row(page: Path) -> list[set[tuple[str, int]]]:
    # Normalised, Chinese brackets and commas are those of English.
    text = unicodedata.normalize("NFKC", page.read_text(encoding="utf-8"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [{(code, int(number)) for code, number in _NAMED.findall(row)} for row in rows]


def test_both_pages_name_the_same_errors_row_by_row() -> None:
    english, chinese = _errors_by_row(ENGLISH), _errors_by_row(CHINESE)

    assert len([row for row in english if row]) > 30
    assert english == chinese


def test_every_exit_code_is_that_of_its_error() -> None:
    exit_codes = {code: row.exit_code for code, row in errors.ROWS.items()}
    named = {one for row in _errors_by_row(ENGLISH) for one in row}

    assert {(code, exit_codes[code]) for code, _ in named} == named
