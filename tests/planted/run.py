"""Plant every bug of the table, one at a time, and see that a test notices. `python -m tests.planted.run`.

`--list` prints the table, `--only NAME` (part of a name) plants the rows that match,
`--changed-since [REV]` at most `--most N` of those whose code or whose catcher has changed since then, `--jobs N` runs N at a time, `--hang S` ends a
test with a bug after S seconds.
Exit code 1: a bug survived, a row is badly made, or the tests fail without any bug.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from tests.planted.bug import PROMISES, Bug
from tests.planted.bugs import BUGS
from tests.planted.changes import BASE, base_of, choose
from tests.planted.copies import ROOT, TEST_S, Verdict, make_base, make_mutant, run_sound, run_tests

_FOUND = "found"
"""`--changed-since` without a commit: the one that `base_of` finds."""


class Outcome(NamedTuple):
    """What became of one bug."""

    bug: Bug
    verdict: Verdict
    seconds: float

    @property
    def word(self) -> str:
        """For the table."""
        if self.verdict.caught:
            return "caught"
        return "SURVIVED" if self.verdict.passed else "BROKEN"


def catchers(bugs: Sequence[Bug]) -> tuple[str, ...]:
    """Every test that is to catch one of `bugs`, once."""
    return tuple(dict.fromkeys(test for bug in bugs for test in bug.caught_by))


def plant_all(bugs: Sequence[Bug], *, jobs: int, test_s: float = TEST_S) -> Iterator[Outcome]:
    """Plant each bug in a copy of its own; outcomes in the order in which they come.

    Args:
        bugs: the rows.
        jobs: how many at a time.
        test_s: a test that takes longer with the bug hangs, which notices it. Too short a limit proves less and refuses nothing.

    Raises:
        RuntimeError: the tests do not pass on the unmutated copy.
        ValueError: a row's old fragment does not stand in the code exactly once.
    """
    for bug in bugs:
        bug.check(ROOT / "recovery")
    with tempfile.TemporaryDirectory(prefix="planted-") as place, ThreadPoolExecutor(jobs) as pool:
        base = make_base(Path(place).resolve())
        sound = run_sound(base, catchers(bugs))
        if not sound.passed:
            message = f"without any bug the tests fail: {sound.test} {sound.why}"
            raise RuntimeError(message)
        for done in as_completed([pool.submit(_plant, base, bug, test_s) for bug in bugs]):
            yield done.result()


def _plant(base: Path, bug: Bug, test_s: float) -> Outcome:
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bug-", dir=base.parent) as place:
        verdict = run_tests(make_mutant(base, bug, Path(place)), bug.caught_by, test_s=test_s)
    return Outcome(bug, verdict, time.monotonic() - begun_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.run", description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="rows whose name holds this")
    parser.add_argument(
        "--changed-since",
        metavar="REV",
        nargs="?",
        const=_FOUND,
        default="",
        help=f"rows that have changed since then; without REV: since {BASE}, or since the day before HEAD's commit",
    )
    parser.add_argument("--most", type=int, default=40, help="how many of the changed ones (40)")
    parser.add_argument("--list", action="store_true", help="print the table and plant nothing")
    parser.add_argument(
        "--jobs", type=int, default=3, help="how many at a time (3); some of them mostly wait"
    )
    parser.add_argument(
        "--hang", metavar="S", type=float, default=TEST_S, help="a test that takes longer hangs (%(default)s)"
    )
    asked = parser.parse_args(arguments)
    bugs = [bug for bug in BUGS if asked.only in bug.name]
    if bugs and asked.changed_since:
        rev = base_of(ROOT, os.environ) if asked.changed_since == _FOUND else asked.changed_since
        bugs, why = choose(bugs, ROOT, rev, most=asked.most)
        print(why, flush=True)
        if not bugs:
            return 0
    if asked.list or not bugs:
        _print_table(bugs)
        return int(not bugs)
    begun_s = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for outcome in plant_all(bugs, jobs=asked.jobs, test_s=asked.hang):
            outcomes.append(outcome)
            print(f"[{len(outcomes)}/{len(bugs)}] {outcome.word:8} {outcome.bug.name}", flush=True)
    except (RuntimeError, ValueError) as error:
        print(error)
        return 1
    return _print_result(outcomes, time.monotonic() - begun_s)


def _print_table(bugs: Sequence[Bug]) -> None:
    for bug in bugs:
        print(f"{bug.breaks:4} {bug.name} (recovery/{bug.file}); {', '.join(bug.caught_by)}")
    for promise, sentence in PROMISES.items():
        print(f"{promise}: {sentence}: {sum(bug.breaks == promise for bug in bugs)} bugs")


def _print_result(outcomes: Sequence[Outcome], seconds: float) -> int:
    order = {bug.name: place for place, bug in enumerate(BUGS)}
    print(f"\n{'bug':72} {'breaks':6} {'s':>5}  caught by")
    for outcome in sorted(outcomes, key=lambda one: order[one.bug.name]):
        by = (
            outcome.verdict.test
            if outcome.verdict.caught
            else f"{outcome.word}: {outcome.verdict.test} {outcome.verdict.why}"
        )
        print(f"{outcome.bug.name:72} {outcome.bug.breaks:6} {outcome.seconds:5.1f}  {by}")
    caught = sum(outcome.verdict.caught for outcome in outcomes)
    hung = [one.bug.name for one in outcomes if one.verdict.hung and not one.bug.hangs]
    print(f"\n{caught} of {len(outcomes)} planted bugs are caught, in {seconds:.0f} s")
    for name in hung:
        print(f"its test did not end, and its row does not say so (hangs=True): {name}")
    return int(caught < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
