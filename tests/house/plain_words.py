"""The words that names, comments and documents do not use, each with its replacement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house.files import Finding, definitions, name_of, numbered, python_files, tracked_files

LOOKED_AT = (
    "recovery/",
    "docs/",
    "examples/",
    "README.md",
    "README.zh-CN.md",
    "CONTRIBUTING.md",
    "Makefile",
    "pyproject.toml",
)
"""What people read who do not know this project. A word for names only is looked for in all Python files."""
SUFFIXES = {".py", ".md", ".sh", ".svg", ".yml", ".toml", ""}


class Word(NamedTuple):
    """A word with a plainer or more exact replacement."""

    pattern: str
    """Matches lower-case text whose identifiers are taken apart: `LayAside` and `lay_aside` are "lay aside"."""
    instead: str
    fine: str = r"(?!)"
    """Matches the 40 characters on both sides where the word is right: a common phrase, or a key of a file or of the wire."""
    is_for_names_only: bool = False
    """The word is right in a text (a zombie process), and too vague or too loaded in a name of ours."""


WORDS = (
    # A metaphor where the field has a word.
    Word(r"storeys?", "layer"),
    Word(r"rooms?", "package, layer", fine=r"(no|make|makes|made|has|have|is|leave|leaves) room\b"),
    Word(r"full houses?", "all ranks ready"),
    Word(r"books?|booked", "checkpoint index"),
    Word(r"notebooks?", "local store"),
    Word(r"chapters?", "event index"),
    Word(r"lanes?", "span of a node", fine=r"name=\"lanes\""),
    Word(
        r"life|lives",
        "process, incarnation",
        fine=r"(life ?time|life ?cycle|half life|lives in\b|name=.life.)",
    ),
    Word(r"farewells?", "grace period, shutdown"),
    Word(r"standstills?|(stood|stands?|standing) still", "paused"),
    Word(r"hung up|hangs? up|hanging up", "disconnected"),
    # A word of yesterday.
    Word(r"anew", "again", fine=r"registering anew"),
    Word(r"mend(s|ed|ing)?", "fix, correct", fine=r"event=setting mended"),
    Word(r"(lay|lays|laid|laying|lies) (\w+ )?aside", "archive", fine=r"event=store laid aside"),
    # A word that says too little or too much.
    Word(r"masters?", "scheduler", is_for_names_only=True),
    Word(r"slaves?", "worker", is_for_names_only=True),
    Word(r"ghosts?", "what it is: a stranger, a process that has ended", is_for_names_only=True),
    Word(r"zombies?", "what it is: fenced, or a process that has ended", is_for_names_only=True),
    Word(r"heals?", "recover, copy", is_for_names_only=True),
    Word(r"managers?", "what it does", is_for_names_only=True),
    Word(r"utils?|helpers?", "what they are for", is_for_names_only=True),
)


def words_found() -> Iterator[Finding]:
    """Every use of these words."""
    yield from _found([word for word in WORDS if not word.is_for_names_only], _lines())
    yield from _found([word for word in WORDS if word.is_for_names_only], _names())


def _found(words: list[Word], texts: Iterable[tuple[Path, int, str]]) -> Iterator[Finding]:
    patterns = [
        (re.compile(rf"\b(?:{word.pattern})\b"), re.compile(word.fine), word.instead) for word in words
    ]
    any_of_them = re.compile("|".join(word.pattern for word in words))
    for path, line, text in texts:
        if any_of_them.search(text):
            for pattern, fine, instead in patterns:
                for match in pattern.finditer(text):
                    if not fine.search(text[max(0, match.start() - 40) : match.end() + 40]):
                        yield Finding(path, line, f'"{match.group()}"', f"write: {instead}")


def _lines() -> Iterator[tuple[Path, int, str]]:
    for path in tracked_files():
        if name_of(path).startswith(LOOKED_AT) and path.suffix in SUFFIXES:
            for line, text in numbered(path):
                yield path, line, taken_apart(text)


def _names() -> Iterator[tuple[Path, int, str]]:
    """Names of files, folders, functions and classes; a test's name is a sentence."""
    for path in python_files():
        yield path, 1, taken_apart(name_of(path).replace("/", " "))
        for one in definitions(path):
            if not one.name.startswith("test_"):
                yield path, one.line, taken_apart(one.name)


def taken_apart(text: str) -> str:
    """Identifiers as words, all in lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").lower()
