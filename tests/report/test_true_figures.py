"""Goodput and lost steps of a hundred stories, told by the product and by a checker that knows nothing but the step logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from recovery.report import stored
from recovery.report.timeline import Story, read_story
from tests.report import step_checker
from tests.report.fault_stories import FAULTS, HEARTBEAT_MS, STEP_MS, Lived, live

STORIES = 100
APART_MS = HEARTBEAT_MS
"""How exactly the end of a training can be known: so long may it be since the last note."""


def by_the_step_logs(lived: Lived) -> dict[int, step_checker.Figures]:
    return step_checker.figures(lived.steps, ranks=lived.workers, pause_ms=HEARTBEAT_MS)


def differences(story: Story, lived: Lived) -> list[str]:
    """Where the two disagree by more than what lies between two heartbeats."""
    expected = by_the_step_logs(lived)
    lost = step_checker.lost_steps(expected, lived.steps)
    told = {one.generation: one for one in story.by_generation}
    found: list[str] = []
    for generation, figures in expected.items():
        if generation not in told:
            found.append(f"generation {generation} is not told")
            continue
        ours = told[generation]
        bounds = 1 + figures.pauses
        for name, mine, theirs, at_most in (
            ("useful", ours.useful_ms, figures.useful_ms, bounds + (figures.redone_ms > 0)),
            ("redone", ours.redone_ms, figures.redone_ms, bounds),
        ):
            if abs(mine - theirs) > at_most * APART_MS:
                found.append(f"generation {generation}: {name} {mine} ms, by the step logs {theirs} ms")
    for one in story.recoveries:
        apart = abs(one.lost_steps - lost.get(one.generation, one.lost_steps))
        if apart * STEP_MS[0] > APART_MS:
            found.append(
                f"generation {one.generation}: {one.lost_steps} steps lost, by the step logs {lost[one.generation]}"
            )
    return found


def test_a_hundred_stories_are_told_as_their_step_logs_tell_them() -> None:
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    useful_ms = theirs_ms = 0
    for seed in range(STORIES):
        lived = live(seed)
        seen.update(fault.partition(" s ")[2] for fault in lived.faults)
        seen["ended"] += lived.ended
        story = lived.told()
        wrong += [f"{seed} ({', '.join(lived.faults)}): {one}" for one in differences(story, lived)]
        useful_ms += story.useful_ms
        theirs_ms += sum(one.useful_ms for one in by_the_step_logs(lived).values())
        assert 0 <= story.useful_ms <= story.end_ms - story.begin_ms
    assert wrong == [], "\n".join(wrong)
    assert all(seen[kind] >= 10 for kind in FAULTS), seen
    assert seen["ended"] >= 95
    assert useful_ms == pytest.approx(theirs_ms, rel=0.03), "what is not exact is so either way"


@pytest.mark.parametrize("seed", range(4))
def test_stories_in_real_stores_are_told_alike(tmp_path: Path, seed: int) -> None:
    lived = live(seed)
    lived.write(tmp_path / "recovery")
    state = stored.read(tmp_path / "recovery")

    assert read_story(state) == (lived.told(), ())
    assert state.job.worker_count == lived.workers
