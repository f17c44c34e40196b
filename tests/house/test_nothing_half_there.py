"""What is declared is used, and what is mentioned is there."""

from __future__ import annotations

import re

import pytest

from recovery import errors
from recovery.core.records import EventKind
from tests.faults.found import FOUND
from tests.faults.tried import TRIED
from tests.house.files import ROOT, definitions, parsed, python_files
from tests.house.names_mentioned import missing
from tests.planted.bug import Bug
from tests.planted.bugs import BUGS

PROGRAM = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in python_files()
    if path.is_relative_to(ROOT / "recovery")
}


def test_every_name_in_a_document_or_a_comment_names_something() -> None:
    # The changelog says what there was at its time.
    assert [one for one in missing() if one.file != "CHANGELOG.md"] == []


@pytest.mark.parametrize("kind", list(errors.kinds()))
def test_every_error_can_happen(kind: type[errors.RecoveryError]) -> None:
    """It is made by its name, or it is found by the code that a machine ends with; or others are kinds of it."""
    by_name = re.compile(rf"(?<!class ){kind.__name__}\(")
    by_code = re.compile(rf"\b{kind.code}\b")

    assert (
        kind.__subclasses__()
        or any(by_name.search(text) for text in PROGRAM.values())
        or any(
            by_code.search(text) for name, text in PROGRAM.items() if not name.startswith("recovery/errors/")
        )
    )


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_test_that_should_catch_a_planted_bug_is_there(bug: Bug) -> None:
    named = [test.partition("[")[0].partition("::") for test in bug.caught_by]

    assert [f"{path}::{name}" for path, _, name in named if not _is_there(path, name)] == []


def _is_there(path: str, name: str) -> bool:
    place = ROOT / path
    if not name:
        return place.exists()
    return place.is_file() and name in {one.name for one in definitions(parsed(place))}


def test_every_file_that_keeps_a_found_bug_fixed_is_there() -> None:
    kept = [*(row.kept for row in FOUND), *(text for row in TRIED for text in row)]
    named = {name for text in kept for name in re.findall(r"`(tests/[^`]+)`", text)}

    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name.partition("::")[0]).exists()) == []


@pytest.mark.parametrize("kind", EventKind)
def test_every_event_can_happen(kind: EventKind) -> None:
    used = re.compile(rf"\bEventKind\.{kind.name}\b")

    assert any(used.search(text) for name, text in PROGRAM.items() if name.startswith("recovery/core/"))
