"""Random kills of trainings over all layouts and tiers of checkpoints; the same bits and samples. `python -m tests.soak.layouts --kills 300`.

Each training is of one case of layout_cases.py. Killed are one worker, two, the scheduler, both or all, at random moments and right
behind a start; a host of its own loses its disk as well. All are started again as they were. Prints a line of JSON for each training.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from recovery.core.records import EventKind
from tests.cluster.harness import Cluster
from tests.soak import runs
from tests.soak.layout_cases import CASES, Case, HostPerWorker, disturbed, undisturbed
from tests.soak.runs import Run

KILLS_OF_A_TRAINING = 6
_AT_ONCE = 0.3
"""How often a blow follows behind a start, whatever the job is doing."""
_FLIPS = 0.3
"""How often a bit is flipped before a kill, while nobody loads."""
_KINDS = ("worker",) * 5 + ("two", "two", "scheduler", "scheduler and worker", "all")
_SUFFIXES = (".ckpt", ".distcp")
"""Of the files that are flipped: manifests are read at the end, to look at who has saved."""
_PAUSE = threading.Event()


class Kills:
    """One training, and what is done to it."""

    def __init__(self, cluster: Cluster, base: Path, seed: int) -> None:
        """Nothing is started yet.

        Args:
            cluster: the processes.
            base: checkpoints in memory lie below.
            seed: draws who is killed, and when.
        """
        self._cluster, self._draw = cluster, random.Random(seed)
        self._base, self._copied, self._is_training = base, 0, False
        self.flipped = ""
        """The file of which a bit was flipped; one in a training, since a rank keeps few."""
        self.kinds: Counter[str] = Counter()
        self.processes = 0
        """So many were killed."""
        self.ended: Counter[str] = Counter()
        """Processes that ended by themselves before the training did, by name and exit code."""

    def one(self) -> None:
        """Draw and do one, start again what it has killed, and let the job train on, or be struck again at once."""
        generation = self._newest_generation()
        kind = self._draw.choice(_KINDS)
        victims = self._victims(kind)
        draws_flip = self._is_training and not self.flipped and self._draw.random() < _FLIPS
        if draws_flip and self._holds_two_steps():
            self._flip()
        lost = self._disk_to_lose(victims)
        self._cluster.kill(*(name for name in victims if self._cluster.processes[name].poll() is None))
        if lost is not None:
            kind = f"{kind}, a disk"
            lost()
        self.kinds[kind] += 1
        self.processes += len(victims)
        for name in self._draw.sample(victims, len(victims)):
            self._cluster.launch(name)
        self._is_training = self._draw.random() >= _AT_ONCE
        if not self._is_training:
            _PAUSE.wait(self._draw.uniform(0.0, 1.5))
            return
        newer = generation if victims == ["sched"] else generation + 1
        self._cluster.wait(lambda: self._trains(newer), f"a step of generation {newer}")
        _PAUSE.wait(self._draw.uniform(0.0, 1.0))

    def finish(self) -> None:
        """Let the training end."""
        self._cluster.go_on()
        self._cluster.wait(self._is_over, "the end of all")

    def _newest_generation(self) -> int:
        has_begun = (self._cluster.directory / "steps.jsonl").exists()
        return max(self._cluster.generations(), default=0) if has_begun else 0

    def _victims(self, kind: str) -> list[str]:
        names = self._cluster.names
        if kind == "all":
            return [*names, "sched"]
        if kind == "scheduler":
            return ["sched"]
        if kind == "two":
            return self._draw.sample(names, 2)
        worker = self._draw.choice(names)
        return [worker, "sched"] if kind == "scheduler and worker" else [worker]

    def _holds_two_steps(self) -> bool:
        """Is there a step to return to where the newest is damaged? With the first damaged, the job rightly ends."""
        return len({one.event.step for one in self._cluster.events(EventKind.CHECKPOINT_COMMITTED)}) > 1

    def _flip(self) -> None:
        """Change one bit of a checkpoint: one of the newest files, of whatever rank, tier or copy."""
        places = [self._cluster.directory / "ckpt", self._cluster.directory / "disks", self._base]
        found = [path for place in places for path in place.rglob("*") if path.suffix in _SUFFIXES]
        newest = sorted(found, key=_written_ns)[-2 * self._cluster.workers :]
        # Retention may be faster.
        with (
            contextlib.suppress(FileNotFoundError, IndexError),
            self._draw.choice(newest).open("r+b") as file,
        ):
            content = file.read()
            at = self._draw.randrange(len(content))
            file.seek(at)
            file.write(bytes([content[at] ^ 1 << self._draw.randrange(8)]))
            self.flipped = file.name

    def _disk_to_lose(self, victims: list[str]) -> HostDisk | None:
        """A disk of one host, where all others hold what is on it; its loss in a moment without copies loses the job as well."""
        draws = self._draw.random() < 0.5
        if not draws or victims == ["sched"] or not isinstance(self._cluster, HostPerWorker):
            return None
        copied = len(self._cluster.events(EventKind.CHECKPOINT_COPIED))
        if copied <= self._copied + 1:
            return None
        self._copied = copied
        return HostDisk(self._cluster, victims[0])

    def _trains(self, generation: int) -> bool:
        self._start_ended()
        return self._cluster.step(generation) > 0

    def _is_over(self) -> bool:
        self._start_ended()
        return all(process.poll() == 0 for process in self._cluster.processes.values())

    def _start_ended(self) -> None:
        """Start again what has ended by itself, as a launcher does."""
        for name, process in [*self._cluster.processes.items()]:
            if process.poll():
                self.ended[f"{name}: {process.returncode}"] += 1
                self._cluster.launch(name)


def _written_ns(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


class HostDisk(NamedTuple):
    """What a dead worker has written; called, it is lost."""

    cluster: HostPerWorker
    name: str

    def __call__(self) -> None:
        shutil.rmtree(self.cluster.disk(self.name), ignore_errors=True)
        shutil.rmtree(self.cluster.saves(self.name), ignore_errors=True)


class Soak:
    """Trainings one after another, and the undisturbed ones that they are compared with."""

    def __init__(self, place: Path) -> None:
        """Nothing is trained yet.

        Args:
            place: empty; what failed is left there.
        """
        self._place = place
        self._undisturbed: dict[str, Cluster] = {}

    def train(self, case: Case, *, kills: int, seed: int) -> dict[str, object]:
        """Train one case under so many kills; returns what was done, for people.

        Raises:
            AssertionError: it hung, or ended otherwise than the undisturbed training.
        """
        directory = self._place / f"{case.name.replace(' ', '-')}-{seed}"
        directory.mkdir()
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="recovery-soak-") as base:
            with disturbed(directory, case, Path(base)) as cluster:
                struck = Kills(cluster, Path(base), seed)
                cluster.start()
                _PAUSE.wait(random.Random(seed).uniform(0.0, 3.0))
                for _ in range(kills):
                    struck.one()
                struck.finish()
                cluster.check_same_as(self._of(case))
            left = [path.name for path in Path(base).iterdir()]
            assert not left, f"left in memory: {left}"
        plans = [one.event.step for one in cluster.events(EventKind.PLAN_MADE)]
        refused = len(cluster.events(EventKind.CHECKPOINT_INVALID)) + len(
            cluster.events(EventKind.CHECKPOINT_PASSED_OVER)
        )
        fetched = len(cluster.events(EventKind.CHECKPOINT_FETCHED))
        shutil.rmtree(directory)
        return {
            "kills": kills,
            "processes": struck.processes,
            "kinds": dict(struck.kinds),
            "flipped": int(bool(struck.flipped)),
            "refused": refused,
            "disks_lost": sum(count for kind, count in struck.kinds.items() if "disk" in kind),
            "returned_to": plans,
            "fetched": fetched,
            "ended_by_themselves": dict(struck.ended),
        }

    def _of(self, case: Case) -> Cluster:
        """The undisturbed training of the same bits, trained once."""
        key = json.dumps([case.script.__name__, case.workers, dict(case.state)])
        if key not in self._undisturbed:
            directory = self._place / f"undisturbed-{len(self._undisturbed)}"
            directory.mkdir()
            with undisturbed(directory, case) as cluster:
                cluster.start()
                cluster.wait_end()
            self._undisturbed[key] = cluster
        return self._undisturbed[key]


def plan(cases: list[Case], *, kills: int, seed: int) -> Iterator[tuple[Case, int, int]]:
    """The trainings: case, number of kills, seed. All cases in turn, until there are so many kills."""
    for number, first in enumerate(range(0, kills, KILLS_OF_A_TRAINING)):
        yield cases[number % len(cases)], min(KILLS_OF_A_TRAINING, kills - first), seed + number


def main() -> int:
    """Run from the command line; returns the exit code: 1 where a training failed."""
    parser = runs.options("layouts", __doc__)
    parser.add_argument("--kills", type=int, default=300, help="how many, over all trainings (300)")
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this one")
    asked = parser.parse_args()
    cases = [case for case in CASES if asked.case in (None, case.name)]
    run, done, sums = Run("layouts", asked), 0, Counter[str]()
    soak = Soak(run.place)
    for case, kills, seed in plan(cases, kills=asked.kills, seed=asked.seed):
        found, fault = {}, ""
        try:
            found = soak.train(case, kills=kills, seed=seed)
        except AssertionError as error:
            fault = str(error)
        sums.update({name: value for name, value in found.items() if isinstance(value, int)})
        done += kills
        run.tell({"case": case.name, "seed": seed, **found}, fault, done=f"{done} of {asked.kills}")
    return run.end({"all": {"cases": len(cases), **sums, "failed": run.failed}})


if __name__ == "__main__":
    sys.exit(main())
