"""small_job with saves whose bytes are written behind the steps, by a thread that a test can hold inside a save.

JOB_HOLD_SAVE names the save (the step) in which the first incarnation of this process waits for the file `save_on`, JOB_BROKEN_SAVES those
that a mistake ends.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO

from typing_extensions import override

import recovery
from recovery.training.state import Snapshot
from tests.cluster.small_job import EPOCHS, HELD_STEP, STEP_MS, Tally, value_after

HERE = Path(__file__).absolute().parent
HOLD_SAVE = int(os.environ.get("JOB_HOLD_SAVE", "0"))
BROKEN_SAVES = [int(step) for step in os.environ.get("JOB_BROKEN_SAVES", "").split()]


class SlowTally(Tally):
    """A tally whose copy waits while it is written."""

    step = 0

    @override
    def snapshot(self) -> Snapshot:
        copy = SlowTally()
        copy.value, copy._batch, copy.step = self.value, self._batch, self.step
        return copy

    @override
    def write(self, stream: BinaryIO) -> None:
        super().write(stream)
        if self.step in BROKEN_SAVES:
            raise ValueError("a mistake of the program")
        if self.step == HOLD_SAVE:
            (HERE / "saving").touch()
            while not (HERE / "save_on").exists():
                time.sleep(0.01)


@recovery.run
def train(session: recovery.Session) -> None:
    config = recovery.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3, async_save=True)
    saver = recovery.ModelCheckpoint("small", HERE / f"ckpt/{session.rank}", config)
    state = SlowTally()
    for step, _ in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
        while step == HELD_STEP and not (HERE / "go_on").exists():
            session.check()
            time.sleep(0.01)
        state.value = value_after(session.rank, state.value, range(step, step + 1))
        state.step = step
        time.sleep(STEP_MS / 1000)
    (HERE / f"result_{session.rank}").write_text(state.value)


if __name__ == "__main__":
    train()
