"""Power cuts on real file systems in loop mounts (needs root). `python -m tests.faults.power_cuts`.

A child writes to a scheduler's store and saves checkpoints, and tells what was acknowledged. Then the file system is shut down without
flushing its log (the ioctl that its own test suites use), mounted again, and looked at. Nothing acknowledged may be missing.

The same is done once more with what our promise forbids: synchronous=NORMAL, and saves without fsync. That must show a loss, or else
this harness shows nothing and fails.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from recovery.checkpoint import verify
from recovery.errors import RecoveryError
from recovery.store.repository import SchedulerStore
from tests.faults.checkpoint_tasks import COPY, FILE, FOLDER, SET, SHARED, Kind, held_in, publish_others
from tests.pace import wait_for
from tests.store.any_records import checkpoint, event, job

SHUTDOWN = 0x8004587D
"""_IOR('X', 125, u32): ext4's and XFS's shutdown."""
NO_LOG_FLUSH = 2
_CLONE_NEWNS = 0x00020000
"""Of linux/sched.h."""
ROWS_PER_SAVE = 3
IMAGE_BYTES = {"ext4": 256 << 20, "xfs": 320 << 20}
"""A copy leaves 64 MiB free."""
WORK_S = (0.05, 0.25)
KINDS = (FILE, SET, SHARED, FOLDER, COPY)
"""Saved in turn. What is in memory ends with the power, and nobody is promised otherwise."""


class Cut(NamedTuple):
    """One power cut."""

    acknowledged: int
    lost: int
    """Acknowledged and not there, or there in part."""
    what: str


def why_not(kind: str) -> str:
    """Why this file system cannot be tested here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which(f"mkfs.{kind}") is None:
        return f"mkfs.{kind} is not installed"
    with tempfile.TemporaryDirectory(prefix="cuts-") as place:
        try:
            with mounted(Path(place), kind):
                return ""
        except subprocess.CalledProcessError as error:
            return f"cannot mount: {error.stderr.decode(errors='replace').strip()}"


def _leave_others_mounts() -> None:
    """Mount where nobody else sees it. A container that another test starts meanwhile would copy a mount, and keep its dead file system."""
    # Who may not do this may not mount either, which is said below.
    if ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0:
        _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextmanager
def mounted(place: Path, kind: str) -> Iterator[Path]:
    """A fresh file system of its own, made and mounted."""
    image, where = place / "image", place / "mount"
    where.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES[kind])
    _run(f"mkfs.{kind}", "-q", str(image))
    _mount(image, where)
    try:
        yield where
    finally:
        _unmount(where)


def _mount(image: Path, where: Path) -> None:
    _run("mount", "-o", "loop", str(image), str(where))


def _unmount(where: Path) -> None:
    command = ["umount", str(where)]
    wait_for(
        lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0,
        f"end of what keeps {where} busy",
    )


def cut_power(where: Path) -> None:
    """What was not synced is gone from now on; every call on it fails."""
    descriptor = os.open(where, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, SHUTDOWN, ctypes.c_uint32(NO_LOG_FLUSH))
    finally:
        os.close(descriptor)


def write(place: Path, channel: int, *, careless: bool) -> None:
    """The child: store batches and checkpoints in turn, each reported when it is acknowledged. Ends with the power."""
    store = SchedulerStore.open(place / "recovery")
    if careless:
        raw = store._database.connection.connection.driver_connection
        assert raw is not None, "it is open"
        raw.execute("PRAGMA synchronous=NORMAL")
        # The child's own copy.
        os.fsync = lambda fd: None
    store.apply([job(1)], wall_ms=1)
    for number in range(1, 100_000):
        store.apply([event(number), checkpoint(number)], wall_ms=1)
        os.write(channel, b"row %d\n" % number)
        if number % ROWS_PER_SAVE == 0:
            kind = KINDS[number // ROWS_PER_SAVE % len(KINDS)]
            if kind is COPY:
                publish_others(place, number)
            kind.save(place, number)
            os.write(channel, b"save %d\n" % number)


def cut_once(place: Path, where: Path, after_s: float, *, careless: bool) -> Cut:
    """Let a child write, cut the power, mount again and look."""
    work = where / f"cut_{time.monotonic_ns()}"
    work.mkdir()
    os.sync()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            write(work, theirs, careless=careless)
        except RecoveryError:
            # The power is gone.
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(1)
    os.close(theirs)
    heard = _hear_until(ours, time.monotonic() + after_s)
    cut_power(where)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # What it reported after the cut is void: a directory's fsync on a shut-down XFS returns 0.
    os.close(ours)
    acknowledged = [line.split() for line in heard.decode().splitlines() if line.count(" ") == 1]
    _unmount(where)
    _mount(place / "image", where)
    found = _look(work)
    lost = [" ".join(line) for line in acknowledged if (line[0], int(line[1])) not in found]
    shutil.rmtree(work)
    return Cut(len(acknowledged), len(lost), ", ".join(lost[:3]))


def _hear_until(channel: int, deadline: float) -> bytes:
    """What the child reports until then, and at least its first word."""
    heard = b""
    while True:
        left = deadline - time.monotonic() if heard else 30.0
        if left <= 0 or not select.select([channel], [], [], left)[0]:
            return heard
        content = os.read(channel, 65_536)
        assert content, f"the child ended by itself after {heard[-100:]!r}"
        heard += content


def _look(work: Path) -> set[tuple[str, int]]:
    """What a next process finds: rows of the store, and checkpoints that verify. What cannot be opened holds nothing."""
    store = SchedulerStore.open(work / "recovery")
    rows = {("row", row.step) for row in store.load().checkpoints}
    store.close()
    return rows | {("save", step) for kind in KINDS for step in _saved(work, kind)}


def _saved(work: Path, kind: Kind) -> set[int]:
    """Steps that every rank of a kind has, each verified."""
    steps = []
    for rank in kind.ranks:
        held = held_in(kind.directory(work), rank)
        for one in held:
            verify.check(Path(one.path), rank=rank)
        steps.append({one.step for one in held})
    return set.intersection(*steps)


def measure(kind: str, cuts: int, *, careless: bool, seed: int) -> dict[str, object]:
    """Cut so many times, each on what the last left; one row of the result."""
    draw, begun = random.Random(f"{seed} {kind}"), time.monotonic()
    done: list[Cut] = []
    with tempfile.TemporaryDirectory(prefix="cuts-") as place, mounted(Path(place), kind) as where:
        for _ in range(cuts):
            try:
                done.append(cut_once(Path(place), where, draw.uniform(*WORK_S), careless=careless))
            except RecoveryError as error:
                # Cannot be opened any more: also a loss.
                done.append(Cut(1, 1, error.code))
    return {
        "file_system": kind,
        "rule": "NORMAL, no fsync (control)" if careless else "FULL, fsync",
        "cuts": len(done),
        "acknowledged": sum(cut.acknowledged for cut in done),
        "cuts_with_loss": sum(cut.lost > 0 for cut in done),
        "first_loss": next((cut.what for cut in done if cut.lost), ""),
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> int:
    """Run from the command line; returns the exit code. 77: no file system could be tested."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.power_cuts", description=__doc__)
    parser.add_argument("--cuts", type=int, default=50, help="over all file systems (50)")
    parser.add_argument("--control-cuts", type=int, default=5, help="for each file system (5)")
    parser.add_argument("--seed", type=int, default=1, help="draws the moments (1)")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    asked = parser.parse_args()
    _leave_others_mounts()
    reasons = {kind: why_not(kind) for kind in IMAGE_BYTES}
    usable = [kind for kind, reason in reasons.items() if not reason]
    for kind, reason in reasons.items():
        if reason:
            print(f"skipped 1 file system: {kind}: {reason}")
    failed = False
    for kind in usable:
        row = measure(kind, -(-asked.cuts // len(usable)), careless=False, seed=asked.seed)
        control = measure(kind, asked.control_cuts, careless=True, seed=asked.seed)
        for one in (row, control):
            print(
                json.dumps(one) if asked.json else "  ".join(f"{k} {v}" for k, v in one.items()), flush=True
            )
        failed = failed or bool(row["cuts_with_loss"]) or not control["cuts_with_loss"]
    return int(failed) if usable else 77


if __name__ == "__main__":
    sys.exit(main())
