"""Fuzz what reads foreign bytes: `python -m tests.fuzz [--seconds 60] [TARGET ...]`. Exit code 1: something was raised that is no error of ours.

With atheris (`pip install -e '.[fuzz]'`) inputs are guided by the branches that they reach; without it, right ones are changed by chance.
`--repeat FILE` feeds one target with one file, and shows what it raises.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from tests.fuzz.blind import fuzz, inputs
from tests.fuzz.targets import TARGETS

ATHERIS, BLIND = "atheris", "blind"


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time, with atheris (1)")
    parser.add_argument("--seed", type=int, default=1, help="of what is left to chance (1)")
    parser.add_argument("--engine", choices=(ATHERIS, BLIND), help="(atheris where it is installed)")
    parser.add_argument(
        "--found", type=Path, default=Path("found"), help="where inputs go that raise (found)"
    )
    parser.add_argument("--repeat", type=Path, help="feed one target with this file")
    asked = parser.parse_args()
    unknown = set(asked.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there is {', '.join(TARGETS)}")
    names = asked.targets or list(TARGETS)
    if asked.repeat is not None:
        if len(names) != 1:
            parser.error("--repeat takes one target")
        with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
            TARGETS[names[0]].taker(Path(place))(asked.repeat.read_bytes())
        print("nothing was raised")
        return 0
    engine = asked.engine or (ATHERIS if importlib.util.find_spec(ATHERIS) else BLIND)
    print(
        f"engine: {engine}, {asked.seconds} s for each of {len(names)} targets, seed {asked.seed}", flush=True
    )
    if engine == ATHERIS:
        # Each target has a process of its own: the threads only wait.
        with ThreadPoolExecutor(asked.jobs) as jobs:
            passed = list(jobs.map(lambda name: _guided(name, asked.seconds, asked.seed, asked.found), names))
    else:
        passed = [_blind(name, asked.seconds, asked.seed, asked.found) for name in names]
    failed = [name for name, well in zip(names, passed, strict=True) if not well]
    print(f"raised what is no error of ours: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def _blind(name: str, seconds: int, seed: int, kept: Path) -> bool:
    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        ends = time.monotonic() + seconds
        given = takewhile(lambda _: time.monotonic() < ends, inputs(target.seeds(), seed=seed))
        count, found = fuzz(target.taker(Path(place)), given)
    print(f"{name:16} {count:9} inputs", flush=True)
    if found is None:
        return True
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / f"{name}-{seed}-{count}"
    file.write_bytes(found.data)
    print(
        f"  {type(found.error).__name__}: {str(found.error)[:300]!r}; python -m tests.fuzz {name} --repeat {file}"
    )
    return False


def _guided(name: str, seconds: int, seed: int, kept: Path) -> bool:
    kept.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.guided", name, str(seconds), str(seed), str(kept)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = done.stdout + done.stderr
    counted = [line.rpartition(" ")[2] for line in said.splitlines() if "number_of_executed_units" in line]
    print(f"{name:16} {counted[0] if counted else '?':>9} inputs", flush=True)
    if done.returncode:
        print(said[-3_000:])
        print(f"  the input lies in {kept}; python -m tests.fuzz {name} --repeat FILE")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
