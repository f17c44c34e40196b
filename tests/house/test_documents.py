"""What the documents name exists: folders, modules, pages, promises. Names of files and tests: names_mentioned.py; links within the site: `make site`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import torture
from tests.house.files import ROOT, name_of, python_files, tracked_files
from tests.planted.bug import PROMISES

CODE_COLUMNS_MAX = 90
"""A longer line of code needs scrolling on the site."""
_TREES = ("recovery", "tests", "examples", "benchmarks", "docs")
_PACKAGES = sorted(path.name for path in (ROOT / "recovery").iterdir() if (path / "__init__.py").is_file())
_QUOTED = re.compile(r"`([^`\s]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *```")


def _documents() -> list[Path]:
    """Every page for people. The changelog is left out: it tells what was there at its time."""
    return [path for path in tracked_files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]


def _pages() -> set[str]:
    """The site's pages, as its navigation names them."""
    docs = ROOT / "docs"
    return {path.relative_to(docs).as_posix() for path in _documents() if path.is_relative_to(docs)}


def _quoted(path: Path) -> Iterator[str]:
    yield from _QUOTED.findall(path.read_text(encoding="utf-8"))


def _exists(named: str) -> bool:
    """Is this file, directory or pattern of files there? A module may be named without its ending."""
    if "*" in named:
        return any(ROOT.glob(named))
    return (ROOT / named).exists() or (ROOT / f"{named}.py").exists()


@pytest.mark.parametrize("document", _documents(), ids=name_of)
def test_every_path_that_a_document_names_exists(document: Path) -> None:
    paths = [
        named.partition("::")[0].partition("#")[0]
        for named in _quoted(document)
        if named.partition("/")[0] in _TREES and "/" in named and "<" not in named
    ]

    assert [path for path in paths if not _exists(path)] == []


def test_every_module_that_the_architecture_names_exists() -> None:
    named = [
        name
        for document in _documents()
        if document.is_relative_to(ROOT / "docs")
        for name in _quoted(document)
        if name.partition("/")[0] in _PACKAGES and re.fullmatch(r"[a-z_]+(/[a-z_]+)+/?(\.py)?", name)
    ]

    assert len(named) > 20
    assert [name for name in named if not _exists(f"recovery/{name}")] == []


def test_the_parts_of_both_machines_are_their_modules() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:its parts|what it knows) \| (.+) \| (.+) \|$", page, re.MULTILINE)

    assert len(rows) == 2
    for row in rows:
        for machine, cell in zip(("scheduler", "worker"), row, strict=True):
            assert [
                part for part in _QUOTED.findall(cell) if not _exists(f"recovery/core/{machine}/{part}")
            ] == []


@pytest.mark.parametrize("document", _documents(), ids=name_of)
def test_every_link_to_a_file_leads_to_one(document: Path) -> None:
    links = _LINK.findall(document.read_text(encoding="utf-8"))
    files = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]

    assert [file for file in files if file and not (document.parent / file).exists()] == []


def test_every_page_has_its_place_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/.-]+\.md)$", text, re.MULTILINE)

    assert sorted(listed) == sorted(_pages())


def test_every_page_that_the_code_names_exists() -> None:
    named = {
        (name_of(path), page)
        for path in python_files()
        for page in re.findall(r"\bdocs/[\w/]+\.md\b", path.read_text(encoding="utf-8"))
    }

    assert sorted(one for one in named if not _exists(one[1])) == []


def test_every_promise_has_its_section() -> None:
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (I\d+):", page, re.MULTILINE)

    # No bug can be planted where the linter holds a promise.
    assert sorted(sections) == sorted({*PROMISES, "I18"})


def test_the_page_of_reliability_lists_what_was_found() -> None:
    heading = "## What it found"
    written = torture.PAGE.read_text(encoding="utf-8").partition(heading)[2]
    made = torture.page({loop.name: Counter() for loop in torture.LOOPS}, hours=0.0).partition(heading)[2]

    assert written == made


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{page}" for page in sorted(_pages()) if not page.startswith("reference/"))]
)
def test_no_line_of_code_needs_scrolling(page: str) -> None:
    inside, long = False, []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif inside and len(line) > CODE_COLUMNS_MAX:
            long.append(line)

    assert long == []
