"""Plant every bug of the table, one at a time, and see that a test notices. `python -m tests.planted.run`.

`--list` prints the table, `--only NAME` (part of a name) plants the rows that match, `--part K/N` the K-th of N parts of them,
`--jobs N` runs N at a time.
Exit code 1: a bug survived, a row is badly made, or the tests fail without any bug.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from tests.planted.bug import PROMISES, Bug
from tests.planted.bugs import BUGS
from tests.planted.copies import ROOT, SOUND_S, TEST_S, Verdict, make_base, make_mutant, run_tests

_LEAST_S = 6.0
_TIMES = 6
"""How much longer than without the bug: the machine may have slowed down meanwhile."""


class Outcome(NamedTuple):
    """What became of one bug."""

    bug: Bug
    verdict: Verdict
    seconds: float

    @property
    def by(self) -> str:
        """The test that noticed it, or what came of the tests instead."""
        if self.verdict.caught:
            return self.verdict.test
        return f"{self.word}: {self.verdict.test} {self.verdict.why}"

    @property
    def word(self) -> str:
        """For the table."""
        if self.verdict.caught:
            return "caught"
        return "SURVIVED" if self.verdict.passed else "BROKEN"


def catchers(bugs: Sequence[Bug]) -> tuple[str, ...]:
    """Every test that is to catch one of `bugs`, once."""
    return tuple(dict.fromkeys(test for bug in bugs for test in bug.caught_by))


def plant_all(bugs: Sequence[Bug], *, jobs: int) -> Iterator[Outcome]:
    """Plant each bug in a copy of its own; outcomes in the order in which they come.

    Raises:
        RuntimeError: the tests do not pass on the unmutated copy.
        ValueError: a row's old text does not stand in the code exactly once.
    """
    for bug in bugs:
        bug.check(ROOT / "recovery")
    with tempfile.TemporaryDirectory(prefix="planted-") as place, ThreadPoolExecutor(jobs) as pool:
        base = make_base(Path(place).resolve())
        sound = run_tests(base, catchers(bugs), test_s=SOUND_S, limit_s=SOUND_S)
        if not sound.passed:
            message = f"without any bug the tests fail: {sound.test} {sound.why}"
            raise RuntimeError(message)
        for done in as_completed([pool.submit(_plant, base, bug, _limit_s(bug, sound)) for bug in bugs]):
            yield done.result()


def _limit_s(bug: Bug, sound: Verdict) -> float:
    """How long a test may take with the bug: one that waits for what does not come any more has noticed it."""
    # Of its whole file: what the tests of a module share is made by whichever runs first.
    files = tuple(test.partition("::")[0] for test in bug.caught_by)
    own = [seconds for test, seconds in sound.took.items() if test.startswith(files)]
    return min(TEST_S, max(_LEAST_S, _TIMES * max(own, default=0.0)))


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
        "--part", type=_part, default=(1, 1), help="K/N: the K-th of N parts; a file's rows stay together"
    )
    parser.add_argument("--list", action="store_true", help="print the table and plant nothing")
    parser.add_argument(
        "--jobs", type=int, default=3, help="how many at a time (3); some of them mostly wait"
    )
    asked = parser.parse_args(arguments)
    bugs = part_of([bug for bug in BUGS if asked.only in bug.name], *asked.part)
    if asked.list or not bugs:
        _print_table(bugs)
        return int(not bugs)
    begun_s = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        for outcome in plant_all(bugs, jobs=asked.jobs):
            outcomes.append(outcome)
            print(f"[{len(outcomes)}/{len(bugs)}] {outcome.word:8} {outcome.bug.name}", flush=True)
    except (RuntimeError, ValueError) as error:
        print(error)
        return 1
    return _print_result(outcomes, time.monotonic() - begun_s)


def part_of(bugs: Sequence[Bug], number: int, of: int) -> list[Bug]:
    """The rows of one of equal parts, in the table's order.

    Those that one file of tests is to catch stay together, so that what its tests need is made, and seen to be sound, in one part.
    """
    files: dict[str, list[Bug]] = {}
    for bug in bugs:
        files.setdefault(bug.caught_by[0].partition("::")[0], []).append(bug)
    parts: list[list[Bug]] = [[] for _ in range(of)]
    for rows in sorted(files.values(), key=len, reverse=True):
        min(parts, key=len).extend(rows)
    chosen = {bug.name for bug in parts[number - 1]}
    return [bug for bug in bugs if bug.name in chosen]


def _part(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    if not 1 <= number <= of:
        message = f"{text} is no part"
        raise ValueError(message)
    return number, of


def _print_table(bugs: Sequence[Bug]) -> None:
    for bug in bugs:
        print(f"{bug.breaks:4} {bug.name} (recovery/{bug.file}); {', '.join(bug.caught_by)}")
    for promise, sentence in PROMISES.items():
        print(f"{promise}: {sentence}: {sum(bug.breaks == promise for bug in bugs)} bugs")


def _print_result(outcomes: Sequence[Outcome], seconds: float) -> int:
    order = {bug.name: place for place, bug in enumerate(BUGS)}
    print(f"\n{'bug':72} {'breaks':6} {'s':>5}  caught by")
    for outcome in sorted(outcomes, key=lambda one: order[one.bug.name]):
        print(f"{outcome.bug.name:72} {outcome.bug.breaks:6} {outcome.seconds:5.1f}  {outcome.by}")
    missed = [outcome for outcome in outcomes if not outcome.verdict.caught]
    for outcome in missed:
        # Once more at the end, where a shortened log still has it.
        print(f"\n{outcome.bug.name}: {outcome.by}")
    caught = len(outcomes) - len(missed)
    print(f"\n{caught} of {len(outcomes)} planted bugs are caught, in {seconds:.0f} s")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
