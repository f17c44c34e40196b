"""SIGKILL, or an I/O error, at every state-changing system call of fifteen tasks. `python -m tests.faults.kill_points`.

After each: a next process opens what is there. It must find exactly what an undisturbed task held after its k-th write, where k is the
number of acknowledged writes or one more: nothing acknowledged is lost, nothing half-done is visible. An I/O error must end in one of
our errors or be survived, never in something else.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from tests.faults.checkpoint_tasks import CHECKPOINT_TASKS
from tests.faults.in_memory import in_memory
from tests.faults.intercepted import (
    BROKEN,
    GO_ON,
    KILL,
    REFUSED,
    Decide,
    End,
    count_calls,
    is_usable,
    run_child,
)
from tests.faults.standby_tasks import STANDBY_TASKS
from tests.faults.task import Task
from tests.faults.tasks import TASKS

CALLS = (
    "openat", "write", "pwrite64", "fsync", "fdatasync", "ftruncate", "fallocate", "rename", "renameat", "renameat2", "unlink",
    "unlinkat", "mkdir", "mkdirat", "link", "linkat", "close",
)  # fmt: skip
ERRORS: dict[str, tuple[str, ...]] = {
    "write": ("EIO", "ENOSPC", "EROFS"),
    "pwrite64": ("EIO", "ENOSPC", "EROFS"),
    "fsync": ("EIO", "ENOSPC", "EROFS"),
    "fdatasync": ("EIO", "ENOSPC", "EROFS"),
    "ftruncate": ("EIO", "ENOSPC", "EROFS"),
    "rename": ("EIO", "ENOSPC", "EROFS"),
    "renameat": ("EIO", "ENOSPC", "EROFS"),
    "unlink": ("EIO", "EROFS"),
    "unlinkat": ("EIO", "EROFS"),
    "mkdir": ("EIO", "ENOSPC", "EROFS"),
    "mkdirat": ("EIO", "ENOSPC", "EROFS"),
}


class Point(NamedTuple):
    """Where and what: the n-th call of a system call."""

    call: str
    number: int
    error: str = ""
    """Its name; empty: SIGKILL."""
    sticky: bool = False
    """Every later call as well."""

    def decides(self) -> Decide:
        """What becomes of each call."""
        answer = getattr(errno, self.error) if self.error else KILL
        made = 0

        def decide(_: str) -> int:
            nonlocal made
            made += 1
            return answer if made == self.number or (self.sticky and made > self.number) else GO_ON

        return decide

    @override
    def __str__(self) -> str:
        return f"{self.call}:{self.error or 'SIGKILL'}:when={self.number}{'+' if self.sticky else ''}"


class Outcome(NamedTuple):
    """What one point did."""

    point: Point
    end: End
    fault: str
    """Why it is a failure; empty if it is none."""


def kill_points(counts: Counter[str]) -> Iterator[Point]:
    """One for each call that was counted."""
    for call in CALLS:
        for number in range(1, counts[call] + 1):
            yield Point(call, number)


def error_points(counts: Counter[str]) -> Iterator[Point]:
    """Each call with each error that it can have, once and for good."""
    for call, errors in ERRORS.items():
        for number in range(1, counts[call] + 1):
            for error in errors:
                for sticky in (False, True):
                    yield Point(call, number, error, sticky)


POINTS: dict[str, Callable[[Counter[str]], Iterator[Point]]] = {"kill": kill_points, "errors": error_points}


class Trial:
    """One task, prepared, with what it holds after each of its writes."""

    def __init__(self, task: Task, place: Path) -> None:
        self.task, self._place = task, place
        self._prepared = task.prepare(place / "prepared")
        self._snapshots = self._look_at_each_write()
        self._tries = 0

    def _work_in(self, where: Path) -> Callable[[Callable[[], None]], None]:
        return lambda acknowledge: self.task.work(where, self._prepared, acknowledge)

    def _copy(self, name: str) -> Path:
        return Path(shutil.copytree(self._place / "prepared", self._place / name))

    def _look_at_each_write(self) -> list[object]:
        where, snapshots = self._copy("undisturbed"), [self.task.look(self._copy("before"))]

        def work(acknowledge: Callable[[], None]) -> None:
            count = 0

            def note() -> None:
                nonlocal count
                count += 1
                shutil.copytree(where, self._place / f"write_{count}")
                acknowledge()

            self.task.work(where, self._prepared, note)

        end = run_child(work)
        assert end.code == 0, f"{self.task.name} undisturbed: {end.said}"
        writes = (self._place / f"write_{count}" for count in range(1, end.acknowledged + 1))
        return [*snapshots, *(self.task.look(write) for write in writes)]

    def count_calls(self) -> Counter[str]:
        """Of the undisturbed task."""
        return count_calls(self._work_in(self._copy("counted")), CALLS)

    def disturb(self, point: Point) -> Outcome:
        """Do the task with one fault, then look as the next process does."""
        self._tries += 1
        where = self._copy(f"try_{self._tries}")
        end = run_child(self._work_in(where), (point.call,), point.decides())
        fault = self._violation(where, end)
        if not fault:
            shutil.rmtree(where)
        return Outcome(point, end, fault)

    def _violation(self, where: Path, end: End) -> str:
        if end.code not in (0, REFUSED, -signal.SIGKILL):
            return f"it ended with {'something else than an error of ours' if end.code == BROKEN else end.code}: {end.said}"
        if end.code == 0 and end.acknowledged != len(self._snapshots) - 1:
            return f"it ended well after {end.acknowledged} of {len(self._snapshots) - 1} writes"
        try:
            found = self.task.look(where)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next process cannot open what is there
            return f"the next process finds {type(error).__name__}: {error}"
        if found in self._snapshots[end.acknowledged : end.acknowledged + 2]:
            return ""
        known = [number for number, snapshot in enumerate(self._snapshots) if snapshot == found]
        return f"{end.acknowledged} writes were acknowledged, the next process finds {f'write {known}' if known else f'a half: {found}'}"


def chosen(points: list[Point], most: int) -> list[Point]:
    """All, or so many of them spread evenly."""
    if not most or len(points) <= most:
        return points
    return [points[number * len(points) // most] for number in range(most)]


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kill_points", description=__doc__)
    parser.add_argument("--what", choices=sorted(POINTS), default="kill", help="SIGKILL or I/O errors (kill)")
    parser.add_argument(
        "--points", type=int, default=0, help="at most so many in all, spread evenly (0: all)"
    )
    parser.add_argument("--only", default="", metavar="NAME", help="tasks whose name holds this")
    parser.add_argument("--json", action="store_true", help="one JSON object a task")
    asked = parser.parse_args()
    if why := is_usable():
        print(f"skipped: {why}")
        return 77
    # What a process says of a planted error is no news here.
    logging.disable(logging.CRITICAL)
    tasks = [task for task in (*TASKS, *CHECKPOINT_TASKS, *STANDBY_TASKS) if asked.only in task.name]
    failures = 0
    for number, task in enumerate(tasks):
        failures += _report(task, POINTS[asked.what], _share(asked.points, number, len(tasks)), asked.json)
    return int(failures > 0)


def _share(points: int, number: int, tasks: int) -> int:
    return points // tasks + (number < points % tasks) if points else 0


def _report(
    task: Task, points_of: Callable[[Counter[str]], Iterator[Point]], most: int, as_json: bool
) -> int:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="points-", dir=in_memory()) as place:
        trial = Trial(task, Path(place))
        # Its collector would write to every page that a child shares.
        gc.collect()
        gc.freeze()
        outcomes = [trial.disturb(point) for point in chosen(list(points_of(trial.count_calls())), most)]
    failed = [outcome for outcome in outcomes if outcome.fault]
    row = {
        "task": task.name,
        "points": len(outcomes),
        "killed": sum(outcome.end.code == -signal.SIGKILL for outcome in outcomes),
        "refused": sum(outcome.end.code == REFUSED for outcome in outcomes),
        "survived": sum(outcome.end.code == 0 for outcome in outcomes),
        "failed": len(failed),
        "seconds": round(time.monotonic() - begun, 1),
    }
    print(
        json.dumps(row) if as_json else "  ".join(f"{name} {value}" for name, value in row.items()),
        flush=True,
    )
    for outcome in failed[:10]:
        print(f"FAILED {task.name} {outcome.point}: {outcome.fault}", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
