"""What is declared is used, and what is mentioned is there."""

from __future__ import annotations

import re

import pytest

from recovery import errors
from recovery.core.records import EventKind
from tests.house.files import ROOT, python_files
from tests.house.names_mentioned import missing

NOT_YET = (
    "docs/reference/protocol.md",
    "recovery/core/messages.py",
    "recovery/core/scheduler/machine.py",
    "recovery/report/timeline.py",
)
"""Where the names of moved modules are still being changed."""
PROGRAM = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in python_files()
    if path.is_relative_to(ROOT / "recovery")
}


def test_every_name_in_a_document_or_a_comment_names_something() -> None:
    # The changelog says what there was at its time.
    assert [one for one in missing() if one.file not in {"CHANGELOG.md", *NOT_YET}] == []


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


@pytest.mark.parametrize("kind", EventKind)
def test_every_event_can_happen(kind: EventKind) -> None:
    used = re.compile(rf"\bEventKind\.{kind.name}\b")

    assert any(used.search(text) for name, text in PROGRAM.items() if name.startswith("recovery/core/"))
