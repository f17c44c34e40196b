"""How long a job makes no step after a SIGKILL, one way of running it after the other; the floors below all. See recover.py.

engine: admission    from the admission of the relaunched worker, which warmed up while it was refused for --window seconds,
                     until all ranks have applied their first step.
engine: kill         window 0, relaunched at once: from the kill until all ranks have applied their first step.
launcher: kill       the same under `recovery msrun`, which starts the dead worker again by itself; "plain script": torchrun's program under it.
torchrun: kill       from the kill until all ranks have applied their first step, as shipped and with the hidden switch.
floor: reform        living processes tear their gloo world down and form the next one.
floor: fresh         one process alone, from its start to its first step.

Everything runs in temporary directories; only processes that were started here are killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from processes import PATIENCE_S, GoneError, Processes, StepLog, free_port, started
from rows import Row, row
from systems import RESTARTS_MAX, SWITCH, known

from recovery.core.records import EventKind
from recovery.errors import RecoveryError
from recovery.store.reader import read_events, read_scheduler

WORK = Path(__file__).resolve().with_name("work.py")
STEPS_BETWEEN_KILLS = (30, 60)
REFORM_ROUNDS = 20


class Kills:
    """One job, killed again and again; how one kills, and since when one counts, is its launcher's affair.

    Args:
        processes: the job's.
        workers: number of ranks.
        launcher: the process without which the measurement is over.
    """

    def __init__(self, processes: Processes, workers: int, launcher: str) -> None:
        self.times: list[float] = []
        self.lost: list[int] = []
        self._processes, self._workers, self._launcher = processes, workers, launcher
        self._steps = StepLog(processes.place / "steps.jsonl")
        # Rounds count from 1.
        self._round = 0

    def measure(
        self, kills: int, kill: Callable[[], float], begun_ms: Callable[[], float] | None = None
    ) -> int:
        """Do all kills. Returns 1 if the last one was never recovered from, else 0.

        Args:
            kills: how many.
            kill: kills one rank and returns when (wall ms).
            begun_ms: asked afterwards for the moment to count from; without it that of the kill.
        """
        chosen = random.Random(1)
        try:
            self._next_round()
            for _ in range(kills):
                target = chosen.randint(*STEPS_BETWEEN_KILLS)
                self._wait(partial(self._has_stepped, target))
                killed_ms, before = kill(), self._round
                self._next_round()
                first = self._steps.first[self._round]
                done_ms = max(wall for _, wall in first.values())
                newest = max(self._steps.newest[before].values())
                self.times.append(done_ms - (begun_ms() if begun_ms else killed_ms))
                self.lost.append(newest - min(step for step, _ in first.values()) + 1)
        except GoneError:
            return 1
        return 0

    def _next_round(self) -> None:
        self._round = self._wait(partial(self._steps.round_of_all, self._workers, after=self._round))

    def _has_stepped(self, target: int) -> bool:
        return self._steps.steps_in(self._round, self._workers) >= target

    def _wait(self, until: Callable[[], Any]) -> Any:
        return self._processes.wait(until, alive=self._launcher)


@contextmanager
def cluster(
    workers: int, window_s: float, script: Path = WORK
) -> Iterator[tuple[Processes, Callable[[str], None]]]:
    """A job of this engine that runs, and what starts one of its processes (again)."""
    with started(
        MS_WORKER_NUM=str(workers),
        MS_SCHED_HOST="127.0.0.1",
        MS_SCHED_PORT=str(free_port()),
        MS_ENABLE_RECOVERY="1",
        MS_RECOVERY_PATH="recovery",
        MS_REJOIN_WINDOW=f"{window_s:g}",
        MS_STEP_LOG="steps.jsonl",
    ) as processes:

        def start(name: str) -> None:
            role = "MS_SCHED" if name == "sched" else "MS_WORKER"
            processes.start(name, [str(script), "engine"], MS_ROLE=role, MS_NODE_ID=name)

        for name in ("sched", *(f"worker_{number}" for number in range(workers))):
            start(name)
        yield processes, start


def engine(workers: int, kills: int, *, window_s: float, script: Path = WORK) -> Row:
    """This engine: each killed worker is started again at once, as a person with recover.sh would.

    Args:
        workers: number of ranks.
        kills: how many.
        window_s: 0 counts from the kill; else from the admission that follows the window.
        script: what each process runs, with the argument `engine`.
    """
    chosen = random.Random(2)
    victims: list[str] = []
    names = [f"worker_{number}" for number in range(workers)]
    with cluster(workers, window_s, script) as (processes, start):

        def kill() -> float:
            victims.append(chosen.choice(names))
            killed_ms = time.time() * 1000
            processes.last[victims[-1]].kill()
            processes.last[victims[-1]].wait()
            start(victims[-1])
            return killed_ms

        job = Kills(processes, workers, "sched")
        admitted = partial(admitted_ms, processes.place / "recovery", victims) if window_s else None
        failed = job.measure(kills, kill, admitted)
        if failed:
            print(processes.tails(), file=sys.stderr)
    return row("engine: admission" if window_s else "engine: kill", workers, job.times, job.lost, failed)


def launcher(workers: int, kills: int, *, plain: bool) -> Row:
    """The same kills under `recovery msrun`, which starts the dead again by itself; window 0.

    Args:
        workers: number of ranks.
        kills: how many.
        plain: the program that torchrun is given, which knows nothing of recovery; else the engine's.
    """
    chosen = random.Random(2)
    with started(
        MS_ENABLE_RECOVERY="1", MS_RECOVERY_PATH="recovery", MS_REJOIN_WINDOW="0", MS_STEP_LOG="steps.jsonl"
    ) as processes:
        flags = [f"--worker_num={workers}", f"--master_port={free_port()}", f"--max_restarts={RESTARTS_MAX}"]
        # What this row has always measured, whatever the launcher's defaults are.
        flags += known("--start_method=spawn", "--rejoin=same")
        program = ["--restart=world", str(WORK), "torchrun"] if plain else [str(WORK), "engine"]
        processes.start("msrun", ["-m", "recovery", "msrun", *flags, "--join=True", *program])

        def kill() -> float:
            victim = chosen.randrange(workers)
            return kill_program(processes, victim) if plain else kill_holder(processes, victim)

        job = Kills(processes, workers, "msrun")
        failed = job.measure(kills, kill)
        if failed:
            print(processes.tails(), file=sys.stderr)
    return row(
        "launcher: kill, plain script" if plain else "launcher: kill", workers, job.times, job.lost, failed
    )


def kill_holder(processes: Processes, rank: int) -> float:
    """Kill the process that holds a rank, by what the scheduler has stored; gives the moment (wall ms)."""
    nodes = read_scheduler(processes.place / "recovery").nodes
    [holder] = [node for node in nodes if node.rank == rank]
    worker = psutil.Process(holder.pid)
    assert worker.ppid() == processes.last["msrun"].pid, "it is the launcher's"
    killed_ms = time.time() * 1000
    worker.kill()
    return killed_ms


def kill_program(processes: Processes, rank: int) -> float:
    """Kill the program of a rank, by the process id that it has written; gives the moment (wall ms)."""
    victim = int((processes.place / f"pid_{rank}").read_text())
    killed_ms = time.time() * 1000
    os.kill(victim, signal.SIGKILL)
    return killed_ms


def admitted_ms(recovery_path: Path, victims: list[str]) -> float:
    """When the scheduler admitted the newest victim (wall ms of the durable event)."""
    try:
        events = read_events(recovery_path, limit=1_000_000)
    except RecoveryError as error:
        raise GoneError(str(error)) from error
    return max(
        stored.wall_ms
        for stored in events
        if stored.event.kind is EventKind.NODE_ADMITTED and stored.event.node_id == victims[-1]
    )


def torchrun(workers: int, kills: int, *, switch: bool) -> Row:
    """The same kills under `torchrun --max-restarts`, which starts all workers again by itself."""
    chosen = random.Random(2)
    with started(**({SWITCH: "1"} if switch else {})) as processes:
        # --standalone: with a fixed --master-port the switch has no effect and restarts fail either way.
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        processes.start("torchrun", [*command, f"--max-restarts={RESTARTS_MAX}", str(WORK), "torchrun"])

        def kill() -> float:
            return kill_program(processes, chosen.randrange(workers))

        job = Kills(processes, workers, "torchrun")
        failed = job.measure(kills, kill)
    mode = f"torchrun: kill, {SWITCH}=1" if switch else "torchrun: kill, as shipped"
    return row(mode, workers, job.times, job.lost, failed)


def reform(workers: int) -> Row:
    """Floor: a gloo world that living processes form again; the slowest rank of each round."""
    with started(BENCH_ROUNDS=str(REFORM_ROUNDS)) as processes:
        for rank in range(workers):
            processes.start(f"rank_{rank}", [str(WORK), "reform"], RANK=str(rank), WORLD_SIZE=str(workers))
        try:
            processes.wait(lambda: all(process.poll() is not None for process in processes.last.values()))
        except GoneError:
            print(processes.tails(), file=sys.stderr)
            return row("floor: reform", workers, [], [], failed=1)
        slowest: dict[int, float] = {}
        for text in (processes.place / "steps.jsonl").read_text().splitlines():
            line = json.loads(text)
            slowest[line["round"]] = max(line["ms"], slowest.get(line["round"], 0.0))
    return row("floor: reform", workers, list(slowest.values()), [])


def fresh(times_n: int, script: Path = WORK) -> Row:
    """Floor: a process alone, from its start to its first step; the first one only warms the disk's cache."""
    times: list[float] = []
    with started() as processes:
        log = processes.place / "steps.jsonl"
        for _ in range(times_n + 1):
            log.unlink(missing_ok=True)
            begun_ms = time.time() * 1000
            processes.start("fresh", [str(script), "fresh"])
            processes.last["fresh"].wait(PATIENCE_S)
            times.append(json.loads(log.read_text())["wall_ms"] - begun_ms)
    return row("floor: fresh", 1, times[1:], [])


def measurements(options: argparse.Namespace) -> Iterator[Row]:
    """Every row that was asked for, as it is measured."""
    only = set(options.only.split(","))
    if "floors" in only:
        yield fresh(5)
    for workers in map(int, options.workers.split(",")):
        if "floors" in only:
            yield reform(workers)
        if "engine" in only:
            yield engine(workers, options.kills, window_s=options.window)
            yield engine(workers, options.kills, window_s=0)
        if "launcher" in only:
            yield launcher(workers, options.kills, plain=False)
            yield launcher(workers, options.kills, plain=True)
        if "torchrun" in only:
            yield torchrun(workers, options.kills, switch=True)
            yield torchrun(workers, options.kills, switch=False)
