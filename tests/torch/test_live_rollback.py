"""A rank is lost, and the others' memory is where training goes on: real processes, real worlds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pace import HANG_S
from tests.torch.live_rank import LAST, step_of
from tests.untraced import ROOT
from tests.warm.process import TORCH, Process

_ENVIRONMENT = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

Reports = list[dict[str, Any]]


def _play(directory: Path, world: int, roles: list[tuple[str, int]], cases: list[str]) -> list[Reports]:
    directory.mkdir()
    processes = [
        Process(
            [
                sys.executable,
                "-m",
                "tests.torch.live_rank",
                role,
                str(rank),
                str(world),
                str(directory),
                *cases,
            ],
            imports=TORCH,
            cwd=ROOT,
            env=_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role, rank in roles
    ]
    deadline = time.monotonic() + HANG_S
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        # One that fails leaves the others waiting for it.
        if any(process.poll() not in (None, 0, 9) for process in processes):
            break
        threading.Event().wait(0.02)
    for process in processes:
        process.kill()
    said = [process.communicate(timeout=60) for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [9 if role == "dies" else 0 for role, _ in roles], said
    return [[json.loads(line) for line in out.splitlines()] for out, _ in said]


def _by_step(reports: Reports) -> dict[int, dict[str, str]]:
    return {report["step"]: report["bits"] for report in reports if "bits" in report}


def _all_of(name: str, reports_of_all: list[Reports]) -> set[Any]:
    return {report[name] for reports in reports_of_all for report in reports if name in report}


def _digest_at(reports: Reports, step: int) -> str:
    return next(str(report["digest"]) for report in reports if report.get("step") == step)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "cases",
    [
        [],
        ["kept"],
        ["accumulate"],
        ["kept", "accumulate"],
        ["two", "kept", "view", "accumulate"],
        ["two", "start"],
        ["kept", "late", "pieces"],
        ["late"],
        ["compiled"],
    ],
    ids=str,
)
def test_survivors_memory_goes_on_as_if_nothing_had_happened(tmp_path: Path, cases: list[str]) -> None:
    world, step_lost = 2 if "two" in cases else 3, step_of(cases)
    undisturbed = _play(tmp_path / "all", world, [("all", rank) for rank in range(world)], cases)
    others = [("stays", rank) for rank in range(1, world)]
    lost, *survivors = _play(tmp_path / "live", world, [("dies", 0), *others, ("fresh", 0)], cases)
    fresh = survivors.pop()

    entered = [fresh, *survivors]
    taken = [report for reports in entered for report in reports if report.get("taken")]
    if step_lost:
        # What rank 0 had at the end of that step is what everybody has.
        assert [report["bits"] for report in taken] == [_by_step(undisturbed[0])[step_lost]] * world
        assert [report["digest"] for report in taken] == [_digest_at(undisturbed[0], step_lost)] * world
        assert _by_step(lost)[step_lost] == _by_step(undisturbed[0])[step_lost]
    assert len({report["digest"] for report in taken}) == 1
    for rank, reports in enumerate(entered):
        for step in range(step_lost + 1, LAST + 1):
            assert _by_step(reports)[step] == _by_step(undisturbed[rank])[step], (rank, step)
            assert _digest_at(reports, step) == _digest_at(undisturbed[0], step), (rank, step)
    assert _all_of("why", entered) == {""}
    assert _all_of("left_alone", entered) == {True}
    assert _all_of("again", survivors) == {True}
    assert _all_of("wrappers_left", survivors) == {0}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("torn", "AdamW had begun its step"),
        ("changed", "parameter model[0].0.weight was changed outside of an optimizer"),
        ("alone", "the gradients of model[0] were not added over the ranks (no_sync)"),
    ],
)
def test_survivor_that_is_not_clean_offers_nothing_and_says_why(
    tmp_path: Path, case: str, reason: str
) -> None:
    _, survivor = _play(tmp_path / "live", 2, [("dies", 0), ("stays", 1)], [case])

    assert [(report["shapes"], report["why_not"]) for report in survivor if "shapes" in report] == [
        ("", reason)
    ]
