"""The words of the field, and those of no dialect of our own. `python -m tests.house.plain_words [FOLDER ...]` lists what is left.

What is looked at is the text of a file with its identifiers taken apart: `lay_aside`, `LayAside` and "lay aside" are the same words.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house.files import ROOT, name_of, tracked_files

LOOKED_AT = ("recovery/", "docs/", "examples/", "README.md", "README.zh-CN.md", "CONTRIBUTING.md")
"""Where the words count: what is read by people who do not know this project."""
SUFFIXES = {".py", ".md", ".sh", ".svg", ".yml", ".toml", ""}


class Word(NamedTuple):
    """A word that a reader from elsewhere would have to look up."""

    pattern: str
    """Of lower-case text."""
    instead: str
    """What the field says."""
    fine: str = r"(?!)"
    """Where it is the plain word all the same; matched from 40 characters before it to 40 behind."""


WORDS = (
    Word(r"storeys?", "layer"),
    Word(r"rooms?", "package, layer", fine=r"(no|make|makes|made|has|have|is|leave|leaves) room\b"),
    Word(r"full houses?", "all ranks ready"),
    Word(r"books?|booked", "checkpoint index"),
    Word(r"chapters?", "event index"),
    Word(r"story|stories", "event log, timeline"),
    Word(r"lanes?", "span per node", fine=r"name=\"lanes\""),
    Word(r"told", "sent, received, reported, known"),
    Word(r"anew", "again", fine=r"registering anew"),
    Word(r"mend(s|ed|ing)?", "fix, correct"),
    Word(r"farewells?", "grace period, shutdown"),
    Word(r"hung up|hangs? up|hanging up", "disconnected"),
    Word(r"standstills?|(stood|stands?|standing) still", "paused"),
    Word(
        r"network cards?|cards?",
        "network interface",
        fine=r"(compute|device|accelerator) cards?|cards? of ascend",
    ),
    Word(r"(lay|lays|laid|laying|lies) (\w+ )?aside|aside", "archive", fine=r"event=store laid aside"),
    Word(r"caring|care", "maintenance"),
    Word(r"complaints?|complain(s|ed|ing)?", "rejection log, warning"),
    Word(r"notebooks?", "local store"),
    Word(r"gates?", "training control, connection limiter"),
    Word(r"(stand|stands|stood|standing) for", "is, means; worker proxy"),
    Word(r"(no|any|a|last) words? (of|from) the|(its|the) last word|without a word", "message"),
    Word(r"life|lives", "process, incarnation", fine=r"(life ?time|life ?cycle|half life|lives in\b)"),
)


class Found(NamedTuple):
    """One of them in a file."""

    file: str
    line: int
    word: str
    text: str


def found_in(paths: Iterable[Path], words: Iterable[Word] = WORDS) -> Iterator[Found]:
    """Every banned word, in the order of the files."""
    compiled = [(re.compile(rf"\b(?:{word.pattern})\b"), re.compile(word.fine)) for word in words]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            said = taken_apart(line)
            for pattern, fine in compiled:
                for match in pattern.finditer(said):
                    if not fine.search(said[max(0, match.start() - 40) : match.end() + 40]):
                        yield Found(name_of(path), number, match.group(), line.strip())


def taken_apart(text: str) -> str:
    """Identifiers as words, all in lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").lower()


def looked_at(folders: Iterable[str] = LOOKED_AT) -> list[Path]:
    """The tracked files below these folders."""
    beginnings = tuple(folders)
    return [
        path for path in tracked_files() if name_of(path).startswith(beginnings) and path.suffix in SUFFIXES
    ]


def main(folders: list[str]) -> None:
    """List every one with its line, then how many there are in each file."""
    found = list(found_in(looked_at(folders or LOOKED_AT)))
    for one in found:
        sys.stdout.write(f"{one.file}:{one.line}: [{one.word}] {one.text[:160]}\n")
    counts: dict[str, Counter[str]] = {}
    for one in found:
        counts.setdefault(one.file, Counter())[one.word] += 1
    for file, of_file in counts.items():
        sys.stdout.write(
            f"{of_file.total():4} {file}: {', '.join(f'{word} {count}' for word, count in of_file.most_common())}\n"
        )
    sys.stdout.write(f"{len(found)} in {len(counts)} files below {ROOT.name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
