"""Random kills of scripts as people write them, each with what is hard to go on with; the same bits and samples. `python -m tests.soak.scripts --kills 200`.

A job is one script of a face (script_faces.py) under `recovery msrun`. Killed are a rank, two, the scheduler, or launcher and all, which the same
command begins again; a rank may be asked to end by SIGTERM instead. When: so many milliseconds into a drawn step, as the job's own log tells, or into the
recovery behind the blow before. Prints a line of JSON for each job, and in the end how often each face has failed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from tests.cluster import checker
from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.pace import wait_for
from tests.soak import runs
from tests.soak.runs import Run
from tests.soak.script_faces import FACES, Form, drawn

KILLS_OF_A_JOB = (3, 8)
STEP_MS = 40
_KINDS = ("rank",) * 6 + ("two", "two", "scheduler", "scheduler", "rank and scheduler", "all", "SIGTERM")
_IN_RECOVERY = 0.25
"""How often a blow falls into the recovery behind the one before."""
_LEFT = 6
"""Steps that are to do when the last blow falls; the job is held before the last of them until then."""
_SCRIPT, _SCHEDULER = "train.py", "sched"
_LOGGED = ("samples", "evaluations", "epochs")
_HANG_S = 1_800.0
"""As `tests.pace.HANG_S`: a soak may run beside everything else, for hours, with what is left of the processors."""
_STEP = re.compile(rb'"step": ?(\d+)[,}]')
_PAUSE = threading.Event()


class Blow(NamedTuple):
    """One kill."""

    kind: str
    step: int
    """It falls behind this one, once that is done anew; 0: in the recovery behind the blow before."""
    into_ms: int

    @override
    def __str__(self) -> str:
        return f"{self.kind} {self.into_ms} ms into " + (
            f"step {self.step + 1}" if self.step else "the recovery"
        )


def blows(draw: random.Random, count: int, last: int) -> list[Blow]:
    """What is done to a job.

    Args:
        draw: all of it.
        count: how many.
        last: step of the job.
    """
    steps = sorted(draw.randint(1, last - _LEFT) for _ in range(count))
    found = []
    for number, step in enumerate(steps):
        is_later = number > 0 and draw.random() < _IN_RECOVERY
        into_ms = draw.randint(0, 1_500 if is_later else 2 * STEP_MS)
        found.append(Blow(draw.choice(_KINDS), 0 if is_later else step, into_ms))
    return found


class ScriptCluster(LaunchedCluster):
    """A job of one form."""

    def __init__(
        self,
        directory: Path,
        form: Form,
        *,
        step_ms: int,
        held: int = 0,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Choose the shape; `begin` starts it.

        Args:
            directory: empty.
            form: of the script.
            step_ms: how long a step takes at least.
            held: a step that does not end before `go_on`: a job that is over is struck no more. 0: none.
            more: further variables.
        """
        face = FACES[form.face]
        environment = {
            **form.environment,
            **(more or {}),
            "JOB_STEP_MS": str(step_ms),
            "JOB_HELD_STEP": str(held),
        }
        self._held = held
        super().__init__(directory, workers=form.workers, imports=face.imports, environment=environment)
        if "MS_STEP_TIMEOUT" not in environment:
            # As users have it: no job is held here for long.
            self.leave_out("MS_STEP_TIMEOUT")
        shutil.copy(face.script, directory / _SCRIPT)

    @override
    def wait(self, until: Callable[[], object], what: str) -> None:
        wait_for(until, what, self.tails, hang_s=_HANG_S)

    def begin(self) -> None:
        """Start it, as it was started before; one that has just finished, as launcher and all were killed, does its last steps again."""
        self.start("--max_restarts=100", "--cluster_time_out=-1", "--continue=True", script=_SCRIPT)

    def await_step(self, step: int) -> None:
        """Wait until a rank has done this step or a later one, from now on, or until the job is held.

        Raises:
            AssertionError: nobody comes there.
        """
        path, deadline_s = self.directory / "steps.jsonl", time.monotonic() + _HANG_S
        known = path.stat().st_size if path.exists() else 0
        while not (self.is_over() or (self._held and self.step() == self._held - 1)):
            if path.exists() and path.stat().st_size > known:
                with path.open("rb") as file:
                    file.seek(known)
                    done = file.read()
                if any(int(found) >= step for found in _STEP.findall(done)):
                    return
            assert time.monotonic() < deadline_s, f"no step {step} within {_HANG_S:g} s\n{self.tails()}"
            # `wait` would look at it every fifth step.
            _PAUSE.wait(0.01)

    def of_slot(self, name: str) -> int:
        """The process of this slot, whose id may be a further one of it (`1.2` for `1`). 0: there is none in this moment."""
        return next((pid for pid, node in self.members() if node.partition(".")[0] == name), 0)

    def is_over(self) -> bool:
        """Has the launcher ended?"""
        return self.processes[LAUNCHER].poll() is not None

    def ledger(self) -> dict[str, dict[Any, list[tuple[str, Any]]]]:
        """What counted at each step (of evaluations and epochs: of each), by file of a rank."""
        found = {}
        for path in sorted(path for name in _LOGGED for path in self.directory.glob(f"{name}_*.jsonl")):
            lines = checker.lines(path)
            of_whom = ("generation", "pid")
            found[path.name] = {
                line.get("step", line.get("epoch")): [pair for pair in line.items() if pair[0] not in of_whom]
                for line in lines
            }
        return found

    def fault_against(self, undisturbed: ScriptCluster) -> str:
        """In what it has ended otherwise; empty: in nothing."""
        code = self.processes[LAUNCHER].returncode
        if code:
            return f"exit code {code}"
        mine, other = self.ledger(), undisturbed.ledger()
        for name in sorted({*mine, *other}):
            one, two = mine.get(name, {}), other.get(name, {})
            differ = sorted(step for step in {*one, *two} if one.get(step) != two.get(step))
            if differ:
                at = differ[0]
                return f"{name}: {len(differ)} of {len(two)} differ, first {at}: {one.get(at)}, not {two.get(at)}"
        if self.digests() != undisturbed.digests():
            return f"final weights differ: {self.digests()}, not {undisturbed.digests()}"
        with contextlib.suppress(AssertionError):
            checker.check_history(self.directory / "steps.jsonl", last_step=undisturbed.step())
            return ""
        return "a step was counted twice, or not at all"


class Struck(NamedTuple):
    """What a job has gone through."""

    fault: str
    """Empty: it has ended as the undisturbed one."""
    done: Counter[str]
    """Blows, by kind, which have hit a living process."""


class Striker:
    """Does to one job what was drawn."""

    def __init__(self, cluster: ScriptCluster, draw: random.Random, last: int) -> None:
        self._cluster, self._draw, self._last = cluster, draw, last
        self.done: Counter[str] = Counter()

    def strike(self, blow: Blow) -> None:
        """Wait for the moment, and do it, unless the job is over before."""
        cluster = self._cluster
        if blow.step:
            cluster.await_step(blow.step)
        _PAUSE.wait(blow.into_ms / 1_000)
        # A job that has finished does not go on: the same command would ask whether to.
        if cluster.is_over() or (blow.kind == "all" and cluster.step() >= self._last):
            return
        victims = [pid for node in self._nodes(blow.kind) if (pid := self._pid(node))]
        if blow.kind == "all":
            victims = [cluster.processes[LAUNCHER].pid, *cluster.living()]
        number = signal.SIGTERM if blow.kind == "SIGTERM" else signal.SIGKILL
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self.done[blow.kind] += bool(victims)
        if blow.kind == "all":
            cluster.processes[LAUNCHER].wait()
            cluster.wait(lambda: not cluster.living(), "end of all that the launcher had started")
            cluster.begin()

    def _pid(self, node: str) -> int:
        """Of its process, once it has one: it may have died in the blow before. 0: the job is over."""
        self._cluster.wait(
            lambda: self._cluster.of_slot(node) or self._cluster.is_over(), f"process of {node}"
        )
        return self._cluster.of_slot(node)

    def _nodes(self, kind: str) -> Sequence[str]:
        ranks = [str(rank) for rank in range(self._cluster.workers)]
        if kind == "two":
            return self._draw.sample(ranks, 2)
        if kind == "scheduler":
            return [_SCHEDULER]
        rank = self._draw.choice(ranks)
        return [rank, _SCHEDULER] if kind == "rank and scheduler" else [rank]


class Soak:
    """Jobs one after another, and the undisturbed ones that they are compared with."""

    def __init__(self, place: Path) -> None:
        """Nothing is trained yet.

        Args:
            place: what failed is left there.
        """
        self.place = place
        self._undisturbed: dict[str, ScriptCluster] = {}

    def train(self, form: Form, *, kills: int, seed: int) -> Struck:
        """Train a script under so many blows."""
        undisturbed = self.of(form)
        if code := undisturbed.processes[LAUNCHER].returncode:
            return Struck(f"exit code {code} of the undisturbed one", Counter())
        draw = random.Random(f"{form.name} {seed}")
        drawn_blows = blows(draw, kills, undisturbed.step())
        directory = self.place / f"{form.name}-{seed}"
        directory.mkdir()
        (directory / "blows.txt").write_text("".join(f"{blow}\n" for blow in drawn_blows))
        fault = ""
        held = undisturbed.step() - 1
        with ScriptCluster(directory, form, step_ms=STEP_MS, held=held) as cluster:
            striker = Striker(cluster, draw, undisturbed.step())
            try:
                cluster.begin()
                for blow in drawn_blows:
                    striker.strike(blow)
                cluster.go_on()
                cluster.wait(cluster.is_over, "end of the job")
                fault = cluster.fault_against(undisturbed)
            except AssertionError as error:
                fault = str(error).partition("\n")[0]
        if not fault:
            shutil.rmtree(directory)
        return Struck(fault, striker.done)

    def of(self, form: Form, **environment: str) -> ScriptCluster:
        """The undisturbed training of the same form, trained once; with further variables, which are the same each time."""
        if form.name not in self._undisturbed:
            directory = self.place / f"undisturbed-{form.name}"
            directory.mkdir()
            with ScriptCluster(directory, form, step_ms=0, more=environment) as cluster:
                cluster.begin()
                cluster.wait_exit(LAUNCHER)
            self._undisturbed[form.name] = cluster
        return self._undisturbed[form.name]


def main() -> int:
    """Run from the command line; returns the exit code: 1 where a job failed."""
    parser = runs.options("scripts", __doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many, over all jobs (200)")
    parser.add_argument(
        "--face", choices=[*FACES], action="append", help="only these (all that are installed)"
    )
    parser.add_argument("--jobs", type=int, default=1_000, help="no more than so many (1000)")
    asked = parser.parse_args()
    faces = asked.face or [name for name, face in FACES.items() if importlib.util.find_spec(face.package)]
    run = Run("scripts", asked)
    soak, sums, done = Soak(run.place), {name: Counter[str](jobs=0, kills=0, failed=0) for name in faces}, 0
    for seed in range(asked.seed, asked.seed + asked.jobs):
        if done >= asked.kills:
            break
        face = faces[(seed - asked.seed) % len(faces)]
        draw = random.Random(seed)
        form, kills = drawn(face, draw), min(draw.randint(*KILLS_OF_A_JOB), asked.kills - done)
        struck = soak.train(form, kills=kills, seed=seed)
        sums[face].update(jobs=1, kills=struck.done.total(), failed=int(bool(struck.fault)))
        done += struck.done.total()
        line = {"face": face, "seed": seed, "form": form.name, "kills": dict(struck.done)}
        again = f"python -m tests.soak.scripts --face {face} --seed {seed} --kills {kills} --jobs 1"
        run.tell(line, struck.fault, kept=f"{form.name}-{seed}", again=again, done=done)
    return run.end(*({"face": face, **of} for face, of in sums.items()))


if __name__ == "__main__":
    sys.exit(main())
