"""Every promise has a story in the gate, and every story exists."""

from __future__ import annotations

import re

from tests import stories
from tests.house.files import ROOT, definitions

_HELD_OTHERWISE = {"I18", "I29"}


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
