"""Every promise has a story in the gate, every story exists, and what needs another environment bears its mark."""

from __future__ import annotations

import re

import pytest

from tests import stories
from tests.house.files import ROOT, definitions, tracked_files

_HELD_OTHERWISE = {"I18", "I29"}
_NEEDS_TORCH_ALONE = {"tests/trainers/test_lightning_loader.py"}


def test_every_promise_has_a_story_in_the_gate() -> None:
    page = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
    promised = set(re.findall(r"^### (I\d+):", page, re.MULTILINE))

    assert promised - _HELD_OTHERWISE == set(stories.PROMISES)


def test_every_story_is_a_test() -> None:
    missing = []
    for story in sorted(stories.STORIES):
        path, name = story.partition("[")[0].split("::")
        found = definitions(ROOT / path) if (ROOT / path).exists() else ()
        if name not in {one.name for one in found}:
            missing.append(story)
    assert missing == []


@pytest.mark.parametrize("environment", ["mindspore", "trainers"])
def test_what_needs_another_environment_bears_its_mark(environment: str) -> None:
    """Without it a test runs in an environment that lacks what it trains with, and not in its own."""
    unmarked = {
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.match(f"tests/{environment}/test_*.py")
        and not re.search(
            rf"^pytestmark = .*\bpytest\.mark\.{environment}\b", path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert unmarked <= _NEEDS_TORCH_ALONE
