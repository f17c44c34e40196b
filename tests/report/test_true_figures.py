"""Goodput and lost steps of thirty simulated jobs, by the product and by a checker that knows nothing but the step logs."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from recovery.report import stored
from recovery.report.timeline import Timeline, read_timeline
from tests.report import step_checker
from tests.report.simulated_jobs import FAULTS, HEARTBEAT_MS, STEP_MS, SimulatedJob, simulate

JOBS = 30
APART_MS = HEARTBEAT_MS
"""How exactly the end of a training can be known: so long may it be since the last record."""


simulated = cache(simulate)
"""Each job once, for all tests."""


def by_the_step_logs(job: SimulatedJob) -> dict[int, step_checker.Figures]:
    return step_checker.figures(job.steps, ranks=job.workers, pause_ms=HEARTBEAT_MS)


def differences(timeline: Timeline, job: SimulatedJob) -> list[str]:
    """Where the two disagree by more than what lies between two heartbeats."""
    expected = by_the_step_logs(job)
    lost = step_checker.lost_steps(expected, job.steps)
    of_product = {one.generation: one for one in timeline.by_generation}
    found: list[str] = []
    for generation, figures in expected.items():
        if generation not in of_product:
            found.append(f"generation {generation} is missing")
            continue
        ours = of_product[generation]
        bounds = 1 + figures.pauses
        for name, mine, theirs, at_most in (
            ("useful", ours.useful_ms, figures.useful_ms, bounds + (figures.redone_ms > 0)),
            ("redone", ours.redone_ms, figures.redone_ms, bounds),
        ):
            if abs(mine - theirs) > at_most * APART_MS:
                found.append(f"generation {generation}: {name} {mine} ms, by the step logs {theirs} ms")
    for one in timeline.recoveries:
        apart = abs(one.lost_steps - lost.get(one.generation, one.lost_steps))
        if apart * STEP_MS[0] > APART_MS:
            found.append(
                f"generation {one.generation}: {one.lost_steps} steps lost, by the step logs {lost[one.generation]}"
            )
    return found


def test_the_figures_of_thirty_jobs_are_those_of_their_step_logs() -> None:
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    useful_ms = theirs_ms = 0
    for seed in range(JOBS):
        job = simulated(seed)
        seen.update(fault.partition(" s ")[2] for fault in job.faults)
        seen["ended"] += job.ended
        timeline = job.timeline()
        wrong += [f"{seed} ({', '.join(job.faults)}): {one}" for one in differences(timeline, job)]
        useful_ms += timeline.useful_ms
        theirs_ms += sum(one.useful_ms for one in by_the_step_logs(job).values())
        assert 0 <= timeline.useful_ms <= timeline.end_ms - timeline.begin_ms
    assert wrong == [], "\n".join(wrong)
    assert all(seen[kind] >= 10 for kind in FAULTS), seen
    assert seen["ended"] >= 28
    assert useful_ms == pytest.approx(theirs_ms, rel=0.03), "what is not exact is so either way"


@pytest.mark.parametrize("seed", range(4))
def test_the_figures_are_the_same_from_real_stores(tmp_path: Path, seed: int) -> None:
    job = simulated(seed)
    job.write(tmp_path / "recovery")
    state = stored.read_stored(tmp_path / "recovery")

    assert read_timeline(state) == (job.timeline(), ())
    assert state.job.worker_count == job.workers
