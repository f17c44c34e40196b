"""A training without a framework whose ranks go in lockstep, and whose length the test decides while it runs.

A step needs every rank, as a collective does: a rank that is cut off from the scheduler waits in its step once the others have
stopped. The ranks meet in a file that all map into memory, one per generation. Training goes on until the file `finish` is there:
rank 0 then names the last step in `finish_at`, before any rank can reach it. Writes `result_<rank>`: a chain of hashes that tells of every step lost or doubled.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import recovery
from recovery.training.state import Snapshot

FINISH, FINISH_AT = "finish", "finish_at"
_MORE_STEPS = 25
"""From the decision to finish to the last step."""
STEP_MS = int(os.environ.get("JOB_STEP_MS", "20"))
NOFILE = os.environ.get("JOB_NOFILE", "")
"""Soft and hard limit of open files, as a system's `ulimit -n` would have left them: `1024:4096`. Empty: as they are."""
_POLL_S = 0.002
_SLOT = struct.Struct("<Q")


def value_after(rank: int, last_step: int) -> str:
    """What an undisturbed training of so many steps ends with."""
    value = ""
    for step in range(1, last_step + 1):
        value = _next(value, rank, step)
    return value


def _next(value: str, rank: int, step: int) -> str:
    return hashlib.sha256(f"{value} {rank} {step}".encode()).hexdigest()


class Tally:
    """The whole training state: a chain of hashes and how many steps are in it."""

    def __init__(self) -> None:
        self.value, self.count = "", 0

    @property
    def batches(self) -> Iterator[int]:
        """Numbers of the next steps, until the last one is known and reached."""
        while self.count < last_step():
            self.count += 1
            yield self.count

    def begin(self) -> None:
        """Nothing is loaded."""

    def snapshot(self) -> Snapshot:
        """A copy."""
        copy = Tally()
        copy.value, copy.count = self.value, self.count
        return copy

    def write(self, stream: BinaryIO) -> None:
        """All of it."""
        stream.write(json.dumps({"value": self.value, "count": self.count}).encode())

    def read(self, path: Path) -> None:
        """All of it."""
        found = json.loads(path.read_bytes())
        self.value, self.count = found["value"], found["count"]

    def versions(self) -> dict[str, str]:
        """There is no framework."""
        return {}


def last_step() -> int:
    """The last step, once it is decided; until then one that is never reached."""
    try:
        return int(Path(FINISH_AT).read_text())
    except FileNotFoundError:
        return 2**53


def decide_last_step(step: int) -> None:
    """Name it while all others wait for this rank in this step at the latest."""
    if Path(FINISH).exists() and not Path(FINISH_AT).exists():
        part = Path(f"{FINISH_AT}.part")
        part.write_text(str(step + _MORE_STEPS))
        part.rename(FINISH_AT)


class Lockstep:
    """The data plane: the slots of all ranks, in a file of this generation."""

    def __init__(self, session: recovery.Session) -> None:
        self._session = session
        size = _SLOT.size * session.world_size
        descriptor = os.open(f"lockstep_{session.generation}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._slots = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def meet(self, step: int) -> None:
        """Wait until every rank has come to this step, or the generation is over."""
        _SLOT.pack_into(self._slots, _SLOT.size * self._session.rank, step)
        while any(reached < step for (reached,) in _SLOT.iter_unpack(self._slots[:])):
            self._session.check()
            time.sleep(_POLL_S)


def train(session: recovery.Session) -> None:
    config = recovery.CheckpointConfig(save_checkpoint_steps=10, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("tiny", f"ckpt/{session.rank}", config)
    state, others = Tally(), Lockstep(session)
    for step, _ in session.steps(state, epochs=1, callbacks=[saver]):
        if session.rank == 0:
            decide_last_step(step)
        others.meet(step)
        state.value = _next(state.value, session.rank, step)
        time.sleep(STEP_MS / 1000)
    Path(f"result_{session.rank}").write_text(state.value)


if __name__ == "__main__":
    if NOFILE:
        soft, _, hard = NOFILE.partition(":")
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
    recovery.run(train)()
