"""A long training of real processes with a random fault every ten seconds; at the end the same bits. `python -m tests.soak.soak`.

All connections are encrypted, unless `--tls off`, and afterwards neither the password nor the job token stands anywhere but in its file.

One standby waits in it; more with `--standbys`. Who was killed is started again under its id, and waits as a standby where one has its rank.

Faults: SIGKILL of a worker or a standby, of the scheduler, of both; SIGSTOP beyond the lease, then SIGCONT; a full disk under store and checkpoints
(needs root for its mounts); a flipped bit in the newest checkpoint of a rank, followed by a kill.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from typing_extensions import override

from recovery.core.records import EventKind
from tests.cluster import checker
from tests.cluster import secured as secured_by
from tests.cluster.harness import Cluster

LEASE = {"MS_NODE_TIMEOUT": "6", "MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
BEYOND_LEASE_S = 8.0
FULL_S = 3.0
FENCED = 76
"""Exit code of a process whose rank another one has."""
DISK_BYTES = 32 << 20
STEPS_PER_EPOCH = 10
STEP_MS = 400
"""How many steps lie between two faults shows nothing, and each costs all processes their part."""
SAVE_STEPS = 5
"""A checkpoint every two seconds."""
_PAUSE = threading.Event()


class WithStandbys(Cluster):
    """Workers `worker_<n>`, standbys `standby_<n>` and `sched`."""

    def __init__(
        self, directory: Path, *, workers: int, standbys: int, environment: Mapping[str, str]
    ) -> None:
        """Choose the shape; `start` starts all.

        Args:
            directory: everything lies here.
            workers: how many.
            standbys: how many; MS_STANDBY_NUM.
            environment: further variables of every process.
        """
        super().__init__(
            directory,
            workers=workers,
            window_s=1.0,
            environment={"MS_STANDBY_NUM": str(standbys), **environment},
        )
        self.places = [*self.names, *(f"standby_{number}" for number in range(standbys))]
        """Node ids of all but the scheduler."""

    @override
    def start(self) -> None:
        for name in (*self.places, "sched"):
            self.launch(name)

    @override
    def launch(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        as_standby = {"MS_STANDBY": "1"} if name.startswith("standby") else {}
        return super().launch(name, **as_standby, **environment)

    @override
    def kill(self, *names: str) -> None:
        super().kill(*(name for name in names if self.processes[name].poll() is None))

    @override
    def wait_end(self, *, also: Collection[int] = (FENCED,)) -> None:
        """Wait until every process has ended, with exit code 0 or because another one has its rank.

        A process that hangs in a broken collective starts itself again (process_group.py, fact 6). Where a standby has taken its rank
        meanwhile, nobody starts it once more when the faults are over.
        """
        super().wait_end(also=also)
        codes = [process.returncode for process in self.processes.values()]
        assert codes.count(0) > self.workers, f"exit codes {codes}\n{self.tails()}"

    def start_fenced_again(self) -> int:
        """Start each process again that has ended since another one has its rank. Gives how many."""
        ended = [name for name in self.places if self.processes[name].poll() == FENCED]
        for name in ended:
            self.launch(name)
        return len(ended)


class Faults:
    """What is done to a cluster. Each fault is over when its method returns, its consequences are not."""

    def __init__(self, cluster: WithStandbys, draw: random.Random, disks: list[Path]) -> None:
        self._cluster, self._draw, self._disks = cluster, draw, disks
        self.done: Counter[str] = Counter()

    @property
    def kinds(self) -> list[Callable[[], None]]:
        """Those that can be done here."""
        always = [
            self.kill_worker,
            self.kill_worker,
            self.kill_scheduler,
            self.kill_both,
            self.stop,
            self.damage,
        ]
        return [*always, self.fill_disk] if self._disks else always

    def one(self) -> None:
        """Draw and do one."""
        self.done["start_fenced_again"] += self._cluster.start_fenced_again()
        fault = self._draw.choice(self.kinds)
        self.done[fault.__name__] += 1
        fault()

    def _victim(self) -> str:
        return self._draw.choice(self._cluster.places)

    def kill_worker(self) -> None:
        self._cluster.kill_and_relaunch(self._victim())

    def kill_scheduler(self) -> None:
        self._cluster.kill_and_relaunch("sched")

    def kill_both(self) -> None:
        self._cluster.kill_and_relaunch("sched", self._victim())

    def stop(self) -> None:
        victim = self._victim()
        if self._cluster.processes[victim].poll() is not None:
            # It was fenced in this moment.
            return
        self._cluster.signal(victim, signal.SIGSTOP)
        _PAUSE.wait(BEYOND_LEASE_S)
        self._cluster.signal(victim, signal.SIGCONT)

    def damage(self) -> None:
        rank = self._draw.randrange(self._cluster.workers)
        files = checker.saved(self._cluster.directory / "ckpt" / str(rank))
        if files:
            newest = files[max(files)]
            # Retired in this moment.
            with contextlib.suppress(FileNotFoundError):
                content = bytearray(newest.read_bytes())
                content[self._draw.randrange(len(content))] ^= 1
                newest.write_bytes(content)
        self.kill_worker()

    def fill_disk(self) -> None:
        fillers = [disk / "filler" for disk in self._disks]
        for filler in fillers:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(65_536))
        _PAUSE.wait(FULL_S)
        for filler in fillers:
            filler.unlink()


@contextlib.contextmanager
def small_disks(directory: Path) -> Iterator[list[Path]]:
    """Small file systems where store and checkpoints lie; none where they cannot be mounted."""
    mounted: list[Path] = []
    try:
        for name in ("recovery", "ckpt") if os.geteuid() == 0 else ():
            (directory / name).mkdir(mode=0o700)
            command = [
                "mount",
                "-t",
                "tmpfs",
                "-o",
                f"size={DISK_BYTES},mode=0700",
                "tmpfs",
                str(directory / name),
            ]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                break
            mounted.append(directory / name)
        yield mounted
    finally:
        for place in mounted:
            subprocess.run(["umount", str(place)], check=True)


def soak(
    place: Path,
    *,
    workers: int,
    seconds: float,
    seed: int,
    standbys: int = 1,
    tls: bool = True,
    period_s: float = 10.0,
    rollback: str = "checkpoint",
) -> str:
    """Train with faults until `seconds` have passed, then let it end, and compare with an undisturbed training.

    Returns:
        What was done, in one line.
    """
    secured = secured_by.with_tls(place) if tls else {}
    canaries = [secured_by.new_token(), *([secured_by.password_of(secured)] if tls else [])]
    # About half of the time goes into coming back.
    steps = int(seconds * 1_000 / STEP_MS / 2)
    epochs = max(2, steps // STEPS_PER_EPOCH)
    environment = {"JOB_EPOCHS": str(epochs), "JOB_SAVE_STEPS": str(SAVE_STEPS), **LEASE}
    environment["MS_ROLLBACK"] = rollback
    sound, disturbed = place / "undisturbed", place / "disturbed"
    for directory in (sound, disturbed):
        directory.mkdir()
    with Cluster(sound, workers=workers, environment={**environment, "JOB_STEP_MS": "0"}) as undisturbed:
        undisturbed.start()
        undisturbed.wait_end()
    secured = {**secured, "MS_JOB_TOKEN": canaries[0]}
    slower = {**environment, **secured, "JOB_STEP_MS": str(STEP_MS), "JOB_HELD_STEP": str(undisturbed.step())}
    with (
        small_disks(disturbed) as disks,
        WithStandbys(disturbed, workers=workers, standbys=standbys, environment=slower) as cluster,
        secured_by.CommandLines(*canaries) as command_lines,
    ):
        cluster.start()
        cluster.wait_step(1)
        faults, begun = Faults(cluster, random.Random(seed), disks), time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            _PAUSE.wait(min(period_s, seconds - passed))
            # The job is not over: a kill after its end would begin the next run.
            faults.one()
        # Who was stopped last has its answer within a heartbeat.
        _PAUSE.wait(BEYOND_LEASE_S)
        faults.done["start_fenced_again"] += cluster.start_fenced_again()
        cluster.go_on()
        cluster.wait_end()
        cluster.check_same_as(undisturbed, live=rollback == "live")
        check_no_secret_left(disturbed, command_lines, canaries)
        done = ", ".join(f"{name} {count}" for name, count in sorted(faults.done.items()))
        taken = len(cluster.events(EventKind.RANK_TAKEN_OVER))
        generation = max(line["generation"] for line in checker.lines(disturbed / "steps.jsonl"))
        return (
            f"seed {seed}: {workers} workers, standbys {standbys}, {undisturbed.step()} steps, {time.monotonic() - begun:.0f} s, "
            f"{generation} generations, {taken} ranks taken over; {done}; disk faults {'on' if disks else 'skipped (needs root)'}; "
            f"rollback {rollback}, TLS {'on' if tls else 'off'}, {len(canaries)} secrets in no file and in no command line; final weights identical"
        )


def check_no_secret_left(
    directory: Path, command_lines: secured_by.CommandLines, canaries: list[str]
) -> None:
    """Logs, store, checkpoints, the store's export, and the command lines while it ran: no secret stands there."""
    export = directory / "export.json"
    subprocess.run(
        [sys.executable, "-m", "recovery", "export", str(directory / "recovery"), str(export)],
        capture_output=True,
        check=True,
    )
    assert EventKind.PLAN_MADE.value in export.read_text()
    assert not (found := secured_by.files_with(directory, *canaries)), f"a secret stands in {found}"
    assert command_lines.looks > 0
    assert not command_lines.found


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long faults are planted (120)")
    parser.add_argument("--workers", type=int, default=8, help="number of workers (8)")
    parser.add_argument("--standbys", type=int, default=1, help="number of standbys (1)")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults (1)")
    parser.add_argument("--tls", choices=("on", "off"), default="on", help="encrypted connections (on)")
    parser.add_argument(
        "--rollback", choices=("checkpoint", "live"), default="checkpoint", help="MS_ROLLBACK (checkpoint)"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        done = soak(
            Path(place),
            workers=asked.workers,
            seconds=asked.seconds,
            seed=asked.seed,
            standbys=asked.standbys,
            tls=asked.tls == "on",
            rollback=asked.rollback,
        )
        print(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
