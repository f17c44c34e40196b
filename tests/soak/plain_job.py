"""A script without a framework, which starts in a second: a chain of hashes, in the forms that its environment names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from typing_extensions import override

import recovery
from recovery.training.state import Snapshot
from tests.cluster.small_job import BATCHES, EPOCHS, STEP_MS, Tally, value_after
from tests.soak.moments import hold, moment

FORM = frozenset(os.environ.get("JOB_FEATURES", "").split())
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))


class Told(Tally):
    """It says when it loads, and when it is saved."""

    @property
    @override
    def batches(self) -> Iterator[int]:
        for batch in super().batches:
            moment("load")
            yield batch

    @override
    def snapshot(self) -> Snapshot:
        moment("save")
        return super().snapshot()

    @override
    def write(self, stream: BinaryIO) -> None:
        moment("save")
        super().write(stream)


def log(session: recovery.Session, name: str, **said: object) -> None:
    with Path(f"{name}_{session.rank}.jsonl").open("a") as file:
        file.write(json.dumps({"generation": session.generation, **said}) + "\n")


def train(session: recovery.Session) -> None:
    saves = 3 if "often" in FORM else 7
    config = recovery.CheckpointConfig(
        save_checkpoint_steps=saves, keep_checkpoint_max=3, async_save="async" in FORM
    )
    saver, state = recovery.ModelCheckpoint("plain", Path(f"ckpt/{session.rank}"), config), Told()
    for step, batch in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
        state.value = value_after(session.rank, state.value, range(step, step + 1))
        if "evaluates" in FORM and step % 6 == 0:
            moment("evaluate")
            log(session, "evaluations", step=step, value=state.value)
        log(session, "samples", step=step, ids=[(step - 1) // BATCHES, batch])
        time.sleep(STEP_MS / 1000)
        hold(session, step)
        while step == HELD_STEP and not Path("go_on").exists():
            session.check()
            time.sleep(0.02)
    Path(f"digest_{session.rank}").write_text(state.value)


if __name__ == "__main__":
    if "init" in FORM:
        train(recovery.init())
    else:
        recovery.run(train)()
