"""What a page shows of a command: its line, taken as it is printed, and what it has said, found again in what it says now."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.house.files import ROOT

_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_VARIES = re.compile(r" \.\.\. |\d[\d:.T-]*Z|\b[0-9a-f]{8}\b|/\S+|\d+(?:\.\d+)?")
"""Left out; a moment, a job's name, a path; a number."""


def blocks(page: str) -> list[str]:
    """What stands in a page between fences."""
    return _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def block(page: str, begin: str) -> str:
    """The one that begins like this."""
    [found] = [text for text in blocks(page) if text.startswith(begin)]
    return found


def check_shown(shown: str, said: str) -> None:
    """Every line of a page was said, in this order, but for numbers, moments, names and paths.

    A line `...` leaves lines out, `$ ...` is a command, and what stands four columns to the right goes on with the line before.
    """
    left = said.splitlines()
    for line in shown.replace("\n    ", " ").splitlines():
        if line and not line.startswith(("$ ", "...")):
            left = _behind(_pattern(line), left, line, said)


def _behind(pattern: re.Pattern[str], left: Sequence[str], line: str, said: str) -> list[str]:
    for number, found in enumerate(left):
        if pattern.fullmatch(found):
            return list(left[number + 1 :])
    raise AssertionError(
        f"a page shows {line!r}, by {pattern.pattern!r}, which was not said behind what it shows before:\n{said}"
    )


def _pattern(line: str) -> re.Pattern[str]:
    parts, at = [], 0
    for match in _VARIES.finditer(line):
        parts.append(re.escape(line[at : match.start()]))
        parts.append(_of(match[0]))
        at = match.end()
    return re.compile("".join([*parts, re.escape(line[at:])]))


def _of(text: str) -> str:
    if text == " ... ":
        return " .*"
    if text.startswith("/"):
        return r"/\S+"
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return r"\d+(?:\.\d+)?"
    return r"[\dT:.Z-]+" if text.endswith("Z") else "[0-9a-f]{8}"
