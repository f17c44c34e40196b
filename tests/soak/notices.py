"""Notices at random moments: hosts that are taken away again and again, no step lost, the same bits. `python -m tests.soak.notices --notices 1000`.

A job is one script (three_lines_job.py, plain_job.py) on one to three hosts of a network of its own (root), with standbys or without. A notice comes to a
launcher or a worker by SIGTERM, to a host by MS_NOTICE_FILE or MS_NOTICE_URL: so many milliseconds into a drawn step, a load, an evaluation, a save, a
start (imports, the first step, before the first checkpoint), or the recovery behind the notice before. What has left is begun again by the same line.

How many steps are lost is read from MS_STEP_LOG: those that a rank has done twice. Where the time that is left was enough they are none. A step that is
lost to a notice without time must be announced (`not saved`). No restart is used (--max_restarts=0), and nobody is left behind on a host that has left.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from recovery.core.records import EventKind
from recovery.errors import ROWS
from tests.cluster.launched import LAUNCHER
from tests.cluster.test_drain import steps_lost
from tests.faults.network import Network, network
from tests.launch.clouds import Cloud
from tests.pace import wait_for
from tests.soak import runs
from tests.soak.drawn_notices import FACES_HERE, Notice, Shape, drawn_notices, drawn_shape
from tests.soak.runs import Run
from tests.soak.scripts import STEP_MS, ScriptCluster, Soak

NOTICES_OF_A_JOB = (4, 8)
EPOCHS = 8
LEFT, DIED_YOUNG, NO_PLACE = 128 + signal.SIGTERM, -signal.SIGTERM, ROWS["WORLD_FULL"].exit_code
"""Exit codes of a launcher: asked to leave; by the signal itself, before anything was started; the ranks of its host are held elsewhere."""
_ENOUGH_S, _TOO_NEAR_S = 240, 1
_AHEAD = 4
"""So many steps a job may do beyond those that are waited for: it is not to come to its end before the notice does."""
_LAST = 12
"""Steps that are to do at the last notice."""
_WHERE, _FROM_BEFORE = "instance-action", "is there from before"
_ANNOUNCED = re.compile(r"not saved: |left behind step \d+: (?!no step is lost|.*no standby has taken)")
_PAUSE = threading.Event()


class Hosts(ScriptCluster):
    """A job on several hosts, each with its launcher."""

    def __init__(self, directory: Path, shape: Shape, made: Network, cloud: Cloud) -> None:
        """Choose the shape; `begin` starts it."""
        super().__init__(directory, shape.form, step_ms=STEP_MS)
        self._shape, self.network, self.cloud = shape, made, cloud
        self._environment |= {
            "JOB_MOMENTS": "1",
            "JOB_EPOCHS": str(EPOCHS),
            "JOB_ANSWER_MS": "60000",
            "MS_DRAIN_TIMEOUT": "120",
            "MS_STOP_GRACE": str(_ENOUGH_S),
        }
        self.names_of_launchers = [LAUNCHER, *(f"launcher_{host}" for host in range(1, shape.hosts))]
        self.begun: Counter[int] = Counter()
        self.until(_AHEAD)

    def until(self, step: int) -> None:
        """Let the job do this step."""
        part = self.directory / "until.part"
        part.write_text(str(step))
        part.rename(self.directory / "until")

    @override
    def begin(self) -> None:
        for host in range(self._shape.hosts):
            self.begin_host(host)

    @override
    def wait(self, until: Callable[[], object], what: str) -> None:
        wait_for(until, what, self.tails)

    def begin_host(self, host: int) -> None:
        """By the same line, each time."""
        self.begun[host] += 1
        flags = [
            f"--local_worker_num={self.workers // self._shape.hosts}",
            f"--master_addr={self.network.address(0)}",
            f"--node_rank={host}",
            f"--log_dir=logs_{host}",
            "--max_restarts=0",
            "--cluster_time_out=-1",
            "--continue=True",
        ]
        if self._shape.standbys == "all" or (self._shape.standbys == "first" and not host):
            flags.append("--standby_num=1")
        variables = [
            f"MS_NOTICE_FILE={self.file_of(host)}",
            f"MS_NOTICE_URL={self.cloud.address}/{host}/{_WHERE}",
        ]
        prefix = (*self.network.inside(host), "env", *variables)
        self.start(*flags, script="train.py", name=self.names_of_launchers[host], prefix=prefix)

    def file_of(self, host: int) -> Path:
        """Its notice."""
        return self.directory / f"notice_{host}"

    def code_of(self, host: int) -> int | None:
        """Of its launcher; None: it runs."""
        return self.processes[self.names_of_launchers[host]].poll()

    def said_by(self, host: int) -> str:
        """Everything that its launchers have said."""
        return self.log(self.names_of_launchers[host])

    def steps_lost(self) -> int:
        """How many a rank has done more than once."""
        return steps_lost(self) if (self.directory / "steps.jsonl").exists() else 0

    def announced(self) -> list[str]:
        """Where launchers, and the scheduler, say of a notice that no step was saved for it."""
        said = [self.said_by(host) for host in range(self._shape.hosts)]
        found = [line for text in said for line in text.splitlines() if _ANNOUNCED.search(line)]
        ended = [stored.event.reason for stored in self.events(EventKind.DRAIN_ENDED)]
        return found + [reason for reason in ended if reason.startswith("it took longer")]


class Giver:
    """Gives one job its notices."""

    def __init__(self, cluster: Hosts, shape: Shape, last: int) -> None:
        self._cluster, self._shape, self._last = cluster, shape, last
        self._idle: set[int] = set()
        """Hosts whose ranks others hold: they are begun again when another host has left."""
        self.done: Counter[str] = Counter()
        self.has_room = True
        self._looked = (0, 0)
        """How many steps were lost, and how many losses announced, up to the notices that `_near` is of."""
        self._near = False
        self.unannounced: list[str] = []
        """Losses behind notices that had time enough, or that nobody announced: each by the notice before which it was found."""

    def give(self, notice: Notice) -> None:
        """Wait for the moment, give it, wait until it was followed, and begin again what has left."""
        cluster = self._cluster
        if notice.moment not in ("start", "recovery"):
            step = cluster.step() + notice.steps
            self.has_room = step < self._last - _LAST
            if not self.has_room:
                return
            cluster.until(step + _AHEAD)
            self._wait(lambda: cluster.step() >= step, f"step {step}")
            # What was lost to the notices before has been done again by now.
            self._account(f"before {notice}")
            if notice.moment != "step":
                self._await_moment(notice.moment)
        _PAUSE.wait(notice.into_ms / 1_000)
        if notice.source == "worker":
            self._ask_worker(notice)
        else:
            self._take_host(notice)

    def finish(self) -> None:
        """Let the job end."""
        cluster = self._cluster
        cluster.until(self._last)
        hosts = {*range(self._shape.hosts)}
        self._wait(lambda: all(cluster.code_of(host) == 0 for host in hosts - self._idle), "end of the job")
        self._account("at the end")
        left = [pid for host in range(self._shape.hosts) for pid in cluster.network.processes(host)]
        assert not left, f"left behind: {left}"

    def _account(self, where: str) -> None:
        """What the notices since the last look have cost: no step, but where one of them had no time, and then it is said."""
        lost, announced = self._cluster.steps_lost(), len(self._cluster.announced())
        before, said = self._looked
        if lost > before and not (self._near and announced > said):
            why = "announced by nobody" if self._near else "all notices had time enough"
            self.unannounced.append(f"{lost - before} steps lost {where}: {why}")
        self._looked, self._near = (lost, announced), False

    def _wait(self, until: Callable[[], object], what: str) -> None:
        """Meanwhile nothing ends but what a notice has ended, which is begun again."""

        def looked() -> bool:
            is_so = bool(until())
            self._begin_again()
            return is_so

        self._cluster.wait(looked, what)

    def _await_moment(self, moment: str) -> None:
        """A fresh one of its kind; where none comes, the job is held or does nothing of that kind."""
        path, deadline_s = self._cluster.directory / "moments", time.monotonic() + 10
        known = path.stat().st_size if path.exists() else 0
        step = self._cluster.step()
        while time.monotonic() < deadline_s:
            if path.exists() and moment.encode() in path.read_bytes()[known:]:
                return
            step += 1
            self._cluster.until(min(step, self._last - _LAST))
            _PAUSE.wait(0.03)

    def _ask_worker(self, notice: Notice) -> None:
        cluster = self._cluster
        pid = cluster.of_slot(str(notice.rank))
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            self.done["worker"] += 1
        self._follow(lambda: pid not in cluster.living(), f"end of {notice}")

    def _take_host(self, notice: Notice) -> None:
        cluster, host = self._cluster, notice.host
        if host in self._idle or cluster.code_of(host) is not None:
            return
        within_s = _TOO_NEAR_S if notice.is_near else _ENOUGH_S
        due = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=within_s)
        time_of = due.strftime("%Y-%m-%dT%H:%M:%SZ")
        text = {"file": "", "file, seconds": str(within_s)}.get(notice.source, time_of)
        if notice.source == "launcher":
            cluster.processes[cluster.names_of_launchers[host]].send_signal(signal.SIGTERM)
        elif notice.source == "metadata":
            answer = json.dumps({"action": "terminate", "time": time_of})
            cluster.cloud.answers[f"/{host}/{_WHERE}"] = (200, answer)
        else:
            cluster.file_of(host).write_text(text)
        self.done[notice.source + ", too near" * notice.is_near] += 1
        self._near |= notice.is_near
        launcher = cluster.processes[cluster.names_of_launchers[host]]
        starts = cluster.said_by(host).count(_FROM_BEFORE)

        def is_gone() -> bool:
            if cluster.said_by(host).count(_FROM_BEFORE) > starts:
                # It came before its launcher looked for the first time.
                cluster.file_of(host).write_text(text)
            return (
                cluster.processes[cluster.names_of_launchers[host]] is not launcher
                or launcher.poll() is not None
            )

        self._follow(is_gone, f"end of {notice}")

    def _follow(self, until: Callable[[], object], what: str) -> None:
        """Wait until it was, and let the job do its next steps meanwhile."""
        raised_s = 0.0

        def looked() -> object:
            nonlocal raised_s
            if time.monotonic() > raised_s + 1:
                raised_s = time.monotonic()
                self._cluster.until(min(self._cluster.step() + _AHEAD, self._last - 2))
            return until()

        self._wait(looked, what)

    def _begin_again(self) -> None:
        """All that have left, a host whose place was taken behind the next one."""
        cluster = self._cluster
        for host in {*range(self._shape.hosts)} - self._idle:
            code = cluster.code_of(host)
            assert code in (None, 0, LEFT, DIED_YOUNG, NO_PLACE), f"exit code {code} of host {host}"
            if code == NO_PLACE:
                self._idle.add(host)
            elif code:
                cluster.cloud.answers.pop(f"/{host}/{_WHERE}", None)
                left = cluster.network.processes(host)
                assert not left, f"left behind on host {host}: {left}"
                for each in (host, *self._idle):
                    cluster.begin_host(each)
                self._idle.clear()


class NoticeSoak(Soak):
    """Jobs one after another, compared with those that nobody has disturbed."""

    def give(self, shape: Shape, made: Network, *, notices: int, seed: int) -> tuple[str, Counter[str], int]:
        """Train a job under so many notices: the fault, empty: none; what was done; the steps that were lost."""
        undisturbed = self.of(shape.form, JOB_EPOCHS=str(EPOCHS))
        draw = random.Random(f"{shape.name} {seed}")
        chosen = drawn_notices(draw, shape, notices)
        directory = self.place / f"job-{seed}"
        directory.mkdir()
        (directory / "notices.txt").write_text("".join(f"{notice}\n" for notice in chosen))
        fault, lost = "", 0
        with Cloud(made.here) as cloud, Hosts(directory, shape, made, cloud) as cluster:
            giver = Giver(cluster, shape, undisturbed.step())
            try:
                cluster.begin()
                for notice in chosen:
                    with (directory / "given.txt").open("a") as given:
                        given.write(f"{time.strftime('%X')} step {cluster.step()}: {notice}\n")
                    giver.give(notice)
                    if not giver.has_room:
                        break
                giver.finish()
                fault = cluster.fault_against(undisturbed)
            except AssertionError as error:
                fault = str(error).partition("\n")[0]
            lost = cluster.steps_lost()
            fault = fault or "; ".join(giver.unannounced)
            for host in range(shape.hosts):
                made.end(host)
        if not fault:
            shutil.rmtree(directory)
        return fault, giver.done, lost


def main() -> int:
    """Run from the command line; returns the exit code: 1 where a job failed."""
    parser = runs.options("notices", __doc__)
    parser.add_argument("--notices", type=int, default=1_000, help="how many, over all jobs (1000)")
    parser.add_argument("--face", choices=FACES_HERE, action="append", help="only these (both in turn)")
    asked = parser.parse_args()
    faces, run = asked.face or FACES_HERE, Run("notices", asked)
    soak, sums, kinds = NoticeSoak(run.place), Counter[str](), Counter[str]()
    with network(3) as made:
        for seed in itertools.count(asked.seed):
            if sums["notices"] >= asked.notices:
                break
            draw, face = random.Random(seed), faces[(seed - asked.seed) % len(faces)]
            shape = drawn_shape(face, draw)
            count = min(draw.randint(*NOTICES_OF_A_JOB), asked.notices - sums["notices"])
            fault, done, lost = soak.give(shape, made, notices=count, seed=seed)
            kinds.update(done)
            sums.update(jobs=1, notices=max(1, done.total()), steps_lost=lost)
            line = {"seed": seed, "job": shape.name, "notices": dict(done), "steps_lost": lost}
            again = f"python -m tests.soak.notices --face {face} --seed {seed} --notices {count}"
            run.tell(line, fault, kept=f"job-{seed}", again=again, done=sums["notices"])
    return run.end({**sums, "failed": run.failed, "by_source": dict(kinds)})


if __name__ == "__main__":
    sys.exit(main())
