"""Everything that is planted, killed, cut and flipped, in rounds, for hours; writes docs/reliability.md. `make torture HOURS=2`.

Each round draws other seeds. The page is written after each round, with the sums of all rounds; a failure ends the loop with its output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.found import FOUND
from tests.faults.tried import TRIED
from tests.planted.bugs import BUGS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
SKIPPED = 77
TRAINERS = ROOT / ".venv-trainers/bin/python"

_HEAD = """\
# Reliability

What was done to the engine, how much of it, and what it found. The promises by number: [guarantees](guarantees.md).
`make torture HOURS=n` runs all of it for hours and writes this page; a smaller round of the same runs in every `make test-all`.

## What was run

| what | how much | result | again by |
|---|---|---|---|
"""

_LAYOUTS = """\
`tests.soak.layouts` kills workers, the scheduler, or all, over twelve ways to keep a state: each layout, in memory, copied to another host, and several of
these together. Hosts lose disks, and bits of checkpoints are flipped. `--case` and `--seed` repeat one training.

`tests.soak.scripts` kills scripts as people write them, under the launcher, each with a drawn set of what is hard to go on with (`tests/soak/script_faces.py`):
one rank, two, the scheduler, or launcher and all, at drawn moments of steps and of recoveries. Exit code, final weights, and the samples of each step are those
of the same script without kills. What failed stays, with the command that repeats it.

"""


class Loop(NamedTuple):
    """One row of the page."""

    name: str
    command: str
    """Of one round; `{seed}` is the round's."""
    result: str
    """Filled with the sums of all rounds."""
    python: Path = Path(sys.executable)
    """Of which environment; where there is none, the loop is left out."""


_SCRIPTS = "{kills} kills in {jobs} jobs | final weights and samples identical in all"
LOOPS = (
    Loop(
        "simulated jobs of 8 workers under 38 kinds of faults",
        "tests.simulation --workers 8 --seeds 2000 --first {first} --json",
        "{seeds} seeds, {simulated_s} simulated s, {faults} faults | {checks} checks, 0 failures",
    ),
    Loop(
        "SIGKILL at a state-changing system call of fifteen tasks",
        "tests.faults.kill_points --what kill --json",
        "{points} points, {killed} reached | nothing acknowledged lost, nothing half: {failed} failures",
    ),
    Loop(
        "EIO, ENOSPC, EROFS there, once and for good",
        "tests.faults.kill_points --what errors --points 3000 --json",
        "{points} points | {refused} refused by name, {survived} survived, {failed} failures",
    ),
    Loop(
        "flipped bits and cut ends of stores, logs, checkpoints of every layout, copies, manifests",
        "tests.faults.flips --flips 6000 --seed {seed} --json",
        "{flips} | {detected} refused before use, {without_effect} without effect, {wrong} read as something else",
    ),
    Loop(
        "power cuts of ext4 and XFS, with checkpoints of every layout and copies",
        "tests.faults.power_cuts --cuts 100 --control-cuts 5 --seed {seed} --json",
        "{cuts} cuts, {acknowledged} acknowledged writes | none lost; the control (synchronous=NORMAL, no fsync) lost in {control} of its cuts",
    ),
    Loop(
        "8 processes with PyTorch and a standby, a fault every 10 s",
        "tests.soak.soak --seconds 120 --seed {seed}",
        "{runs} trainings | final weights identical in all",
    ),
    Loop(
        "500 random kills of 3 workers with 2 standbys, a fresh id after each",
        "tests.soak.kills --kills 500 --seed {seed}",
        "{runs} times | final values identical in all",
    ),
    Loop(
        "random kills over all layouts and tiers of checkpoints",
        "tests.soak.layouts --kills 300 --seed {seed}",
        "{kills} kills of {processes} processes, {disks_lost} disks lost, {flipped} bits flipped | "
        "final weights and samples identical in all; {refused} files refused before use, {fetched} fetched from another host",
    ),
    Loop(
        "random kills of scripts with three lines, with what is hard to go on with",
        "tests.soak.scripts --face three_lines --kills 50 --seed {seed}",
        _SCRIPTS,
    ),
    Loop(
        "the same with Lightning, Accelerate and the Trainer of transformers, in their environment",
        "tests.soak.scripts --face lightning --face transformers --face accelerate --kills 150 --seed {seed}",
        _SCRIPTS,
        TRAINERS,
    ),
    Loop("planted bugs", "tests.planted.run", "{bugs} bugs | all caught, by the tests that each names"),
)


def once(loop: Loop, number: int) -> Iterator[tuple[str, int]]:
    """One round of a loop; what is to be added up.

    Raises:
        SystemExit: it failed.
    """
    command = loop.command.format(seed=number, first=10_000 + 2_000 * number)
    print(f"python -m {command}", flush=True)
    if not loop.python.exists():
        print(f"left out: there is no {loop.python}", flush=True)
        return
    done = subprocess.run(
        [loop.python, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == SKIPPED:
        print(done.stdout, flush=True)
        return
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    yield "runs", 1
    yield "bugs", len(BUGS)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield from _sums(json.loads(line))


def _sums(row: dict[str, Any]) -> Iterator[tuple[str, int]]:
    control = "control" in str(row.get("rule", ""))
    if control:
        yield "control", int(row["cuts_with_loss"])
        return
    for name, value in row.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, int(value)


def page(sums: dict[str, Counter[str]], hours: float) -> str:
    """The whole page."""
    rows = []
    for loop in LOOPS:
        counts = sums[loop.name]
        figures = loop.result.format_map(_Counted(counts)) if counts else "skipped here | "
        again = loop.command.format(seed=1, first=10_000)
        rows.append(f"| {loop.name} | {figures} | `python -m {again}` |\n")
    return (
        _HEAD
        + "".join(rows)
        + f"\nIn {hours:.1f} hours on two cores.\n\n"
        + _LAYOUTS
        + "## What it found\n\n"
        + f"{len(FOUND)} bugs (`tests/faults/found.py`), and {len(TRIED)} by running jobs from outside and hitting them where nobody had expected it "
        + "(`tests/faults/tried.py`). Every one is fixed; each row names the test that fails when it comes back.\n"
    )


class _Counted(dict[str, str]):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__({name: f"{value:,}" for name, value in counts.items()})

    def __missing__(self, name: str) -> str:
        return "0"


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.torture", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="no round begins after this (1)")
    parser.add_argument("--first", type=int, default=1, help="seed of the first round (1)")
    asked = parser.parse_args()
    begun, sums = time.monotonic(), {loop.name: Counter[str]() for loop in LOOPS}
    number = asked.first
    while number == asked.first or time.monotonic() - begun < asked.hours * 3_600:
        for loop in LOOPS:
            for name, value in once(loop, number):
                if loop.name == "planted bugs" and name == "bugs":
                    sums[loop.name][name] = value
                else:
                    sums[loop.name][name] += value
        PAGE.write_text(page(sums, (time.monotonic() - begun) / 3_600), encoding="utf-8")
        print(f"round {number} is over; wrote {PAGE.name}", flush=True)
        number += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
