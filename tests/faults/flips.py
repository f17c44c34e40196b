"""Flipped bits and cut ends in everything that is stored. `python -m tests.faults.flips`.

A flip is effective when what is read differs from what was written. Every effective one must be refused by an error of ours before
use; none may be read as something else. The damaged file must still be there afterwards, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from recovery.checkpoint import verify
from recovery.errors import RecoveryError
from recovery.store.repository import SchedulerStore, WorkerStore
from tests.faults.checkpoint_tasks import COPY, FILE, FOLDER, SET, SHARED, Kind, held_in, publish_others
from tests.faults.in_memory import in_memory
from tests.store import any_records, samples


class Target(NamedTuple):
    """One kind of file."""

    name: str
    file: str
    """Below the prepared directory."""
    prepare: Callable[[Path], None]
    read: Callable[[Path], object]
    refused: object = None
    """Read where the damaged one was left out, which refuses it as well: the older step stays."""


def _killed(work: Callable[[], None]) -> None:
    """Do something in a process of its own and kill it there."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended by itself"


def _fill_scheduler(place: Path) -> SchedulerStore:
    store = SchedulerStore.open(place)
    for step in range(1, 9):
        rows = [any_records.checkpoint(step, rank) for rank in range(4)]
        store.apply([any_records.job(step), any_records.node(step=step), *rows], wall_ms=1)
    return store


def _fill_worker(place: Path) -> WorkerStore:
    store = WorkerStore.open(place, "worker_3")
    for step in range(1, 9):
        store.apply([any_records.checkpoint(step), *samples.every_kind()], wall_ms=1)
    return store


def _read_scheduler(place: Path) -> object:
    with closing(SchedulerStore.open(place)) as store:
        return store.load()


def _read_worker(place: Path) -> object:
    with closing(WorkerStore.open(place, "worker_3")) as store:
        return store.load()


def _of_kind(kind: Kind, *files: str) -> tuple[Target, ...]:
    """Files of the newer one of two steps, which lie where the kind keeps them."""

    def prepare(place: Path) -> None:
        publish_others(place, 1, 2)
        for step in (1, 2):
            kind.save(place, step)

    def read(place: Path) -> object:
        """What the plan would be given, verified as it is before a load: steps, and which of them is refused."""
        directory = kind.directory(place)
        steps = []
        for rank in kind.ranks:
            held = held_in(directory, rank)
            for one in held:
                verify.check(Path(one.path))
            steps.append(tuple(one.step for one in held))
        return min(steps)

    top = Path("/")
    where = kind.directory(top).relative_to(top)
    return tuple(
        Target(f"{kind.name}: {one}", str(where / one), prepare, read, refused=(1,)) for one in files
    )


TARGETS = (
    Target("scheduler.db", "scheduler.db", lambda place: _fill_scheduler(place).close(), _read_scheduler),
    Target(
        "scheduler.db-wal",
        "scheduler.db-wal",
        lambda place: _killed(lambda: _keep(_fill_scheduler(place))),
        _read_scheduler,
    ),
    Target("worker.db", "workers/worker_3.db", lambda place: _fill_worker(place).close(), _read_worker),
    Target(
        "worker.db-wal",
        "workers/worker_3.db-wal",
        lambda place: _killed(lambda: _keep(_fill_worker(place))),
        _read_worker,
    ),
    *_of_kind(FILE, "train-2_1.ckpt", "train-2_1.json"),
    *_of_kind(SET, "train-2_1.more"),
    *_of_kind(SHARED, "train_rank_1-2_1.ckpt", "train_rank_1-2_1.side", "train_rank_1-2_1.json"),
    *_of_kind(FOLDER, "step_2/within/b", "step_2.json"),
    *_of_kind(COPY, "train_rank_1-2_1.ckpt", "train_rank_1-2_1.json"),
)

_kept: list[object] = []


def _keep(store: object) -> None:
    # A store that is forgotten closes itself.
    _kept.append(store)


def damage(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """One flipped bit, or a cut end in one of ten cases."""
    if draw.random() < 0.1:
        left = draw.randrange(len(content))
        return content[:left], f"cut to {left} bytes"
    used = [draw.randrange(len(content)) for _ in range(8)]
    # Mostly where something is written.
    position = next((each for each in used if content[each]), used[0])
    bit = draw.randrange(8)
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed), f"bit {bit} of byte {position}"


def measure(target: Target, count: int, seed: int) -> tuple[dict[str, object], list[str]]:
    """So many flips of one kind of file; the row, and what went wrong."""
    draw, begun = random.Random(f"{seed} {target.name}"), time.monotonic()
    detected, harmless, wrong = 0, 0, []
    with tempfile.TemporaryDirectory(prefix="flips-", dir=in_memory()) as parent:
        good = Path(parent) / "good"
        good.mkdir()
        target.prepare(good)
        content = (good / target.file).read_bytes()
        expected = target.read(Path(shutil.copytree(good, Path(parent) / "read")))
        for number in range(count):
            place = Path(shutil.copytree(good, Path(parent) / f"flip_{number}"))
            for index in place.rglob("*-shm"):
                # As after a reboot: nothing but the files is left.
                index.unlink()
            broken, what = damage(content, draw)
            (place / target.file).write_bytes(broken)
            try:
                found = target.read(place)
            except RecoveryError as error:
                detected += 1
                if (place / target.file).read_bytes() != broken:
                    wrong.append(f"{what}: refused ({error.code}), but the file was changed")
            except Exception as error:  # noqa: BLE001 - whatever it is, it is none of ours
                wrong.append(f"{what}: {type(error).__name__}: {error}")
            else:
                if found == expected:
                    harmless += 1
                elif target.refused is not None and found == target.refused:
                    detected += 1
                else:
                    wrong.append(f"{what}: read as something else")
            shutil.rmtree(place)
    row = {
        "file": target.name,
        "flips": count,
        "detected": detected,
        "without_effect": harmless,
        "wrong": len(wrong),
        "seconds": round(time.monotonic() - begun, 1),
    }
    return row, wrong


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=1_200, help="over all kinds of files (1200)")
    parser.add_argument("--seed", type=int, default=1, help="draws the places (1)")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    asked = parser.parse_args()
    failed = False
    for target in TARGETS:
        row, wrong = measure(target, -(-asked.flips // len(TARGETS)), asked.seed)
        failed = failed or bool(wrong)
        print(json.dumps(row) if asked.json else "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
        for line in wrong[:10]:
            print(f"FAILED {target.name} {line}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
