"""Ranks that hang, each in one of eight ways: who is named, how soon, and the same bits in the end. `python -m tests.soak.hangs --hangs 200`.

A job is `three_lines_job.py` of a drawn form with `MS_STEP_TIMEOUT=auto`; one rank hangs once, behind a drawn step (hanging.py). A process that is silent
as a whole is judged by its lease (MS_NODE_TIMEOUT), any other one by the limit of what it was at. Prints a line of JSON for each job, and in the end
for each way.
"""

from __future__ import annotations

import random
import re
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from recovery.core.records import EventKind
from tests.soak import runs
from tests.soak.hanging import KINDS
from tests.soak.runs import Run
from tests.soak.script_faces import Form, drawn
from tests.soak.scripts import STEP_MS, ScriptCluster, Soak

RIGHT_LEAST = 0.95
"""Of all hangs, so many name the rank that hangs."""
_SLACK_S = 2
_LEASE_S = 30
"""MS_NODE_TIMEOUT, as it is by default."""
_FIRST = 6
"""Before this step nobody knows yet how long a step takes."""
_LIMIT = re.compile(r"its limit is ([\d.]+) s")
_TIMES = ("told_s", "limit_s", "over_s")
_NAMES = (EventKind.HANG_SUSPECTED, EventKind.NODE_LOST)
"""What names a rank first."""


class Hang(NamedTuple):
    """One that is done to a job."""

    kind: str
    rank: int
    step: int


class Verdict(NamedTuple):
    """What came of one."""

    fault: str
    """Empty: the job has ended as the undisturbed one."""
    rank: int | None
    """The first one that was named."""
    told_s: float
    """From the hang until then, by the wall clock of this host."""
    limit_s: float
    over_s: float
    """From the hang until its generation ended."""

    def is_in_time(self) -> bool:
        """By its limit, and what it takes to look."""
        return self.rank is not None and self.told_s <= self.limit_s + _SLACK_S


def drawn_hang(kind: str, draw: random.Random, *, workers: int, last: int) -> Hang:
    """Where a job hangs; one that leaves out a collective does so in the last step, for any later one would stand in for it."""
    step = last - 1 if kind == "skipped" else draw.randint(_FIRST, last - _FIRST)
    return Hang(kind, draw.randrange(workers), step)


def drawn_form(kind: str, draw: random.Random) -> Form:
    """A script; where its loader hangs, it loads in the process that trains."""
    form = drawn("three_lines", draw)
    while kind == "loader" and form.chosen[0] == "workers":
        form = drawn("three_lines", draw)
    return form


class HangSoak(Soak):
    """Jobs one after another, compared with those that do not hang."""

    def hang(self, form: Form, hang: Hang) -> Verdict:
        """Train a script that hangs once."""
        undisturbed = self.of(form)
        directory = self.place / f"{form.name}-{hang.kind}-{hang.rank}-{hang.step}"
        directory.mkdir()
        more = {"MS_STEP_TIMEOUT": "auto", "JOB_HANG": f"{hang.kind} {hang.rank} {hang.step}"}
        with ScriptCluster(directory, form, step_ms=STEP_MS, more=more) as cluster:
            cluster.begin()
            try:
                cluster.wait(cluster.is_over, "end of the job")
                fault = cluster.fault_against(undisturbed)
            except AssertionError as error:
                fault = str(error).partition("\n")[0]
            verdict = _verdict(cluster, fault)
        if not fault and verdict.rank == hang.rank:
            shutil.rmtree(directory)
        return verdict


def _verdict(cluster: ScriptCluster, fault: str) -> Verdict:
    mark = cluster.directory / "hung"
    if not mark.exists():
        return Verdict(fault or "nothing has hung", None, 0, 0, 0)
    hung_s = mark.stat().st_mtime
    named = [stored for kind in _NAMES for stored in cluster.events(kind) if stored.wall_ms / 1_000 >= hung_s]
    ended = [
        stored.wall_ms / 1_000 - hung_s
        for stored in cluster.events(EventKind.GENERATION_INTERRUPTED)
        if stored.wall_ms / 1_000 >= hung_s
    ]
    over_s = min(ended, default=0.0)
    if not named:
        return Verdict(fault or "nobody was named", None, 0, 0, over_s)
    first = min(named, key=lambda stored: stored.sequence)
    limit = _LIMIT.search(first.event.reason)
    limit_s = float(limit[1]) if limit else _LEASE_S
    return Verdict(fault, first.event.rank, first.wall_ms / 1_000 - hung_s, limit_s, over_s)


def main() -> int:
    """Run from the command line; returns the exit code: 1 where a job failed, or too many named another rank or came too late."""
    parser = runs.options("hangs", __doc__)
    parser.add_argument("--hangs", type=int, default=200, help="how many, all kinds in turn (200)")
    parser.add_argument("--kind", choices=[*KINDS], action="append", help="only these (all)")
    asked = parser.parse_args()
    kinds, run = asked.kind or [*KINDS], Run("hangs", asked)
    soak, found = HangSoak(run.place), defaultdict[str, list[tuple[Hang, Verdict]]](list)
    for number in range(asked.hangs):
        seed, kind = asked.seed + number, kinds[number % len(kinds)]
        draw = random.Random(f"{kind} {seed}")
        form = drawn_form(kind, draw)
        hang = drawn_hang(kind, draw, workers=form.workers, last=soak.of(form).step())
        verdict = soak.hang(form, hang)
        found[kind].append((hang, verdict))
        line: dict[str, Any] = {"seed": seed, "form": form.name, **hang._asdict(), "named": verdict.rank}
        line |= {name: round(getattr(verdict, name), 1) for name in _TIMES}
        run.tell(line, verdict.fault)
    sums = {kind: _sums_of(pairs) for kind, pairs in found.items()}
    right = sum(of["right_in_time"] for of in sums.values())
    lines = ({"kind": kind, **of} for kind, of in sums.items())
    return run.end(*lines, is_good=right >= RIGHT_LEAST * asked.hangs)


def _sums_of(pairs: Sequence[tuple[Hang, Verdict]]) -> dict[str, Any]:
    good = [verdict for hang, verdict in pairs if verdict.rank == hang.rank and verdict.is_in_time()]
    failed = sum(bool(verdict.fault) for _, verdict in pairs)
    medians = {
        f"{name}_median": round(statistics.median(getattr(verdict, name) for _, verdict in pairs), 1)
        for name in ("told_s", "over_s")
    }
    return {"hangs": len(pairs), "right_in_time": len(good), "failed": failed, **medians}


if __name__ == "__main__":
    sys.exit(main())
