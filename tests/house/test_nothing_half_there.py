"""What is declared is used, and what is mentioned is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from recovery import errors
from recovery.core.records import EventKind
from tests.faults.found import FOUND
from tests.faults.tried import TRIED
from tests.house.files import ROOT, Finding, line_of, name_of, program_files, report, text_of
from tests.house.names_mentioned import missing


def test_every_name_in_a_document_or_a_comment_names_something() -> None:
    # The changelog says what there was at its time.
    report(one for one in missing() if one.path.name != "CHANGELOG.md")


def test_every_error_can_happen() -> None:
    """It is made by its code, or by its class where that has no other; or it is found by the code that a machine ends with."""
    outside = "\n".join(
        text_of(path) for path in program_files() if not name_of(path).startswith("recovery/errors/")
    )
    named = set(re.findall(r"\b\w+\b", outside))
    alone = {kind.rows[0].code: kind.__name__ for kind in vars(errors).values() if _is_of_one_row(kind)}
    path = Path(inspect.getfile(errors))

    report(
        Finding(path, 1, f"nothing raises {code}", "delete its row")
        for code in errors.ROWS
        if code not in named and alone.get(code) not in named and code != errors.RecoveryError.rows[0].code
    )


def _is_of_one_row(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, errors.RecoveryError) and len(kind.rows) == 1


def test_every_file_that_keeps_a_found_bug_fixed_is_there() -> None:
    kept = [*(row.kept for row in FOUND), *(text for row in TRIED for text in row)]
    named = {name for text in kept for name in re.findall(r"`(tests/[^`]+)`", text)}

    assert len(named) > 30
    assert sorted(name for name in named if not (ROOT / name.partition("::")[0]).exists()) == []


def test_every_event_can_happen() -> None:
    path = Path(inspect.getfile(EventKind))
    core = "\n".join(text_of(one) for one in program_files() if name_of(one).startswith("recovery/core/"))
    used = set(re.findall(r"\bEventKind\.(\w+)", core))

    report(
        Finding(path, line_of(path, f"{kind.name} ="), f"no machine makes {kind.name}", "delete it")
        for kind in EventKind
        if kind.name not in used
    )
