"""A training that a tracker follows: the loss of each step is known, and tells of every step lost or doubled."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import recovery
from recovery.training.state import Snapshot

HERE = Path(__file__).absolute().parent
EPOCHS, BATCHES = 3, 20
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
OTHERWISE = os.environ.get("JOB_OTHERWISE") == "1"
"""What a step gives depends on the generation: as where a device adds up in another order."""


def loss_behind(step: int, loss: float) -> float:
    """The loss of a step, from that of the one before it."""
    return loss * 0.97 + 0.001 * step


class Losses:
    """The whole training state."""

    def __init__(self) -> None:
        self.loss, self._batch = 1.0, 0

    @property
    def batches(self) -> Iterator[int]:
        while self._batch < BATCHES:
            self._batch += 1
            yield self._batch
        self._batch = 0

    def begin(self) -> None:
        """Nothing is loaded."""

    def snapshot(self) -> Snapshot:
        copy = Losses()
        copy.loss, copy._batch = self.loss, self._batch
        return copy

    def write(self, stream: BinaryIO) -> None:
        stream.write(json.dumps([self.loss, self._batch]).encode())

    def read(self, path: Path) -> None:
        self.loss, self._batch = json.loads(path.read_bytes())

    def versions(self) -> dict[str, str]:
        return {}


def train(session: recovery.Session) -> None:
    tracker = recovery.Tracker(**json.loads(os.environ["JOB_TRACKER"]))
    config = recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("tracked", HERE / f"ckpt/{session.rank}", config)
    state = Losses()
    for step, _ in session.steps(state, epochs=EPOCHS, callbacks=[tracker, saver]):
        while step == HELD_STEP and not (HERE / "go_on").exists():
            session.check()
            time.sleep(0.01)
        state.loss = loss_behind(step, state.loss)
        session.report(loss=state.loss + (session.generation if OTHERWISE else 0))
        tracker.log(rate=1 / step)
        time.sleep(0.02)


if __name__ == "__main__":
    recovery.run(train)()
