"""What the documents name exists: folders, modules, pages, promises. Names of files and tests: names_mentioned.py; links within the site: `make site`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import recovery
from tests.faults import torture
from tests.house.files import (
    ROOT,
    Finding,
    line_of,
    name_of,
    numbered,
    python_files,
    report,
    text_of,
    tracked_files,
)
from tests.planted.bug import PROMISES

CODE_COLUMNS_MAX = 90
"""A longer line of code needs scrolling on the site."""
_TREES = ("recovery", "tests", "examples", "benchmarks", "docs")
_PACKAGES = sorted(path.name for path in (ROOT / "recovery").iterdir() if (path / "__init__.py").is_file())
_QUOTED = re.compile(r"`([^`\s]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *```")
_NAME_ANOTHER = "name one that exists"


def _documents() -> list[Path]:
    """Every page for people. The changelog is left out: it tells what was there at its time."""
    return [path for path in tracked_files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]


def _pages() -> set[str]:
    """The site's pages, as its navigation names them."""
    docs = ROOT / "docs"
    return {path.relative_to(docs).as_posix() for path in _documents() if path.is_relative_to(docs)}


def _matches(pattern: re.Pattern[str], paths: list[Path]) -> Iterator[tuple[Path, int, str]]:
    """What the group of the pattern matches in each file, with its line."""
    for path in paths:
        text = text_of(path)
        for match in pattern.finditer(text):
            yield path, text.count("\n", 0, match.start()) + 1, match[1]


def _exists(named: str) -> bool:
    """Is this file, directory or pattern of files there? A module may be named without its ending."""
    if "*" in named:
        return any(ROOT.glob(named))
    return (ROOT / named).exists() or (ROOT / f"{named}.py").exists()


def test_every_path_that_a_document_names_exists() -> None:
    report(
        Finding(document, line, f"no {path}", _NAME_ANOTHER)
        for document, line, named in _matches(_QUOTED, _documents())
        if named.partition("/")[0] in _TREES and "/" in named and "<" not in named
        for path in [named.partition("::")[0].partition("#")[0]]
        if not _exists(path)
    )


def test_every_module_that_the_architecture_names_exists() -> None:
    documents = [document for document in _documents() if document.is_relative_to(ROOT / "docs")]
    named = [
        (document, line, name)
        for document, line, name in _matches(_QUOTED, documents)
        if name.partition("/")[0] in _PACKAGES and re.fullmatch(r"[a-z_]+(/[a-z_]+)+/?(\.py)?", name)
    ]

    assert len(named) > 20
    report(
        Finding(document, line, f"no recovery/{name}", _NAME_ANOTHER)
        for document, line, name in named
        if not _exists(f"recovery/{name}")
    )


def test_the_parts_of_both_machines_are_their_modules() -> None:
    page = ROOT / "docs/architecture.md"
    rows = re.findall(r"^\| (?:its parts|what it knows) \| (.+) \| (.+) \|$", text_of(page), re.MULTILINE)

    assert len(rows) == 2
    report(
        Finding(page, line_of(page, cell), f"no recovery/core/{machine}/{part}", _NAME_ANOTHER)
        for row in rows
        for machine, cell in zip(("scheduler", "worker"), row, strict=True)
        for part in _QUOTED.findall(cell)
        if not _exists(f"recovery/core/{machine}/{part}")
    )


def test_every_link_to_a_file_leads_to_one() -> None:
    report(
        Finding(document, line, f"no {link}", "link to a file that exists")
        for document, line, link in _matches(_LINK, _documents())
        if not re.match(r"[a-z]+:", link)
        for file in [link.partition("#")[0]]
        if file and not (document.parent / file).exists()
    )


def test_every_page_has_its_place_in_the_navigation() -> None:
    text = text_of(ROOT / "mkdocs.yml").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/.-]+\.md)$", text, re.MULTILINE)

    assert sorted(listed) == sorted(_pages())


def test_every_page_that_the_code_names_exists() -> None:
    report(
        Finding(path, line, f"no {page}", _NAME_ANOTHER)
        for path, line, page in _matches(re.compile(r"\b(docs/[\w/]+\.md)\b"), python_files())
        if not _exists(page)
    )


def test_every_promise_has_its_section() -> None:
    sections = re.findall(r"^### (I\d+):", text_of(ROOT / "docs/guarantees.md"), re.MULTILINE)

    # No bug can be planted where the linter holds a promise.
    assert sorted(sections) == sorted({*PROMISES, "I18"})


def test_the_page_of_reliability_lists_what_was_found() -> None:
    heading = "## What it found"
    written = torture.PAGE.read_text(encoding="utf-8").partition(heading)[2]
    made = torture.page({loop.name: Counter() for loop in torture.LOOPS}, hours=0.0).partition(heading)[2]

    assert written == made


def test_no_line_of_code_needs_scrolling() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs" / page for page in sorted(_pages()))]
    report(
        Finding(page, line, f"{len(text)} columns of code", f"break it after at most {CODE_COLUMNS_MAX}")
        for page in pages
        if not name_of(page).startswith("docs/reference/")
        for line, text in _code(page)
        if len(text) > CODE_COLUMNS_MAX
    )


def _code(page: Path) -> Iterator[tuple[int, str]]:
    """The lines within fences."""
    is_inside = False
    for line, text in numbered(page):
        if _FENCE.match(text):
            is_inside = not is_inside
        elif is_inside:
            yield line, text


def test_the_version_has_a_dated_section_of_the_changelog_behind_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(recovery.__version__)} - \d{{4}}-\d{{2}}-\d{{2}}", headings[1])
