"""How long a job makes no step after a SIGKILL: this engine, torchrun and torchft on the same training, and the floors below all.

    python benchmarks/recover.py [--workers 4,8] [--kills 20] [--torchft-python PATH] [--memory MB] [--json]
    python benchmarks/recover.py --only engine,launcher,torchrun,floors [--window 6]

The first compares in turn, in one run: `recovery msrun` with relaunch by spawn, by fork and with a standby, torchrun, torchft, a bare
fork and a bare fresh process. Its rows: mode, workers, median_ms, p99_ms, steps_lost (median), n (recoveries measured), failed
(recoveries that never came), parts_ms (medians), start_ms (start of the job to the first step of all), starts, load (of the machine,
median). Then the ratios that are aimed at: aim, ratio, at_most, met, of_ms, over_ms; and last what was not available, and why.

The second measures one way of running the job after the other; its rows are described in one_by_one.py.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator

from aims import ratios
from comparison import Comparison
from one_by_one import engine, fresh, launcher, reform, torchrun
from rows import Row, row
from systems import System, chosen

IN_TURN = "systems"
LAYOUT = (
    "{mode:50} {workers!s:>7} {median_ms!s:>10} {p99_ms!s:>10} {steps_lost!s:>11} {n!s:>4} {failed!s:>7}"
    " {start_ms!s:>10} {load!s:>6}"
)


def one_after_the_other(
    only: set[str], workers_list: list[int], kills: int, window_s: float
) -> Iterator[Row]:
    """Every row of the groups that were asked for, as it is measured."""
    if "floors" in only:
        yield fresh(5)
    for workers in workers_list:
        if "floors" in only:
            yield reform(workers)
        if "engine" in only:
            yield engine(workers, kills, window_s=window_s)
            yield engine(workers, kills, window_s=0)
        if "launcher" in only:
            yield launcher(workers, kills, plain=False)
            yield launcher(workers, kills, plain=True)
        if "torchrun" in only:
            yield torchrun(workers, kills, switch=True)
            yield torchrun(workers, kills, switch=False)


def in_turn(workers_list: list[int], kills: int, systems: list[System]) -> Iterator[Row]:
    """The comparison: its rows, its ratios, what was not available. What is measured when it is stopped is still told."""
    comparison = Comparison([one for one in systems if not one.missing], workers_list, kills)
    try:
        comparison.measure()
    finally:
        yield from (cell.as_row() for cell in comparison.cells.values())
        yield from ratios(comparison.cells)
        yield from ({"mode": one.name, "not_available": one.missing} for one in systems if one.missing)


def main() -> None:
    """Measure and print row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="4,8", help="numbers of workers, with commas (4,8)")
    parser.add_argument("--kills", type=int, default=20, help="recoveries per row (20)")
    parser.add_argument("--window", type=float, default=6.0, help="seconds that a lost id is refused (6)")
    parser.add_argument("--memory", type=int, default=0, help="MB that each rank touches besides (0)")
    parser.add_argument(
        "--only", default=IN_TURN, help=f"which groups, with commas ({IN_TURN}: the comparison)"
    )
    parser.add_argument(
        "--system", action="append", default=[], help="only this one of the comparison; repeat it"
    )
    parser.add_argument("--torchft-python", default="", help="an interpreter that has torchft (this one)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ["BENCH_MEMORY_MB"] = str(options.memory)
    only = set(options.only.split(","))
    systems = chosen(options.system, options.torchft_python)
    workers_list = [int(number) for number in options.workers.split(",")]
    if not options.json:
        print(LAYOUT.format(**{name: name for name in ("start_ms", "load", *row("", 0, [], []))}))
    if IN_TURN in only:
        for one in in_turn(workers_list, options.kills, systems):
            show(one, as_json=options.json)
    for one in one_after_the_other(only, workers_list, options.kills, options.window):
        show(one, as_json=options.json)


def show(one: Row, *, as_json: bool) -> None:
    """One line."""
    if as_json:
        print(json.dumps(one), flush=True)
    elif "median_ms" in one:
        print(
            LAYOUT.format(**{**dict.fromkeys(("start_ms", "load")), **one}),
            one.get("parts_ms") or "",
            flush=True,
        )
    else:
        print("  ".join(f"{key}={value}" for key, value in one.items()), flush=True)


if __name__ == "__main__":
    main()
