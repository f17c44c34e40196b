"""A training without a framework: it starts in a fraction of a second, and its result tells of every step lost or doubled.

Started as `python small_job.py` or as `pytest -s -v small_job.py`. Writes `result_<rank>` (the value after the last step) and
`seen_<node id>.json` (what the training function found when it was entered: environment, command line, pid).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import recovery
from recovery.core.worker import barrier
from recovery.training.state import Snapshot

HERE = Path(__file__).absolute().parent
EPOCHS = int(os.environ.get("JOB_EPOCHS", "3"))
BATCHES = 20
"""Steps of an epoch."""
STEP_MS = int(os.environ.get("JOB_STEP_MS", "20"))
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A step that is not counted before the file `go_on` is there: what a test looks for has happened by then."""
HELD_FIRST = int(os.environ.get("JOB_HELD_FIRST", "0"))
"""An earlier one, that waits for the file `go_on_first`."""
SAVE_STEPS = int(os.environ.get("JOB_SAVE_STEPS", "5"))
SAVES_BY_NODE = os.environ.get("JOB_SAVES_BY_NODE") == "1"
"""Checkpoints lie in a directory of the node's name, not of the rank's number."""
barrier.ANSWER_MS = int(os.environ.get("JOB_ANSWER_MS", barrier.ANSWER_MS))
"""How long a worker that is asked to end waits for the scheduler's answer: no setting, and too short for a scheduler on a busy machine."""
AFTER_S = float(os.environ.get("JOB_AFTER_S", "0"))
"""How long the script goes on when training is over, as one does that evaluates what it has trained."""
PADDING = int(os.environ.get("JOB_PADDING", "0"))
"""Bytes that a checkpoint has more, for tests that meet it on its way."""
DEEDS_ASKED = [deed.partition("@")[::2] for deed in os.environ.get("JOB_DO", "").split()]
"""What to do once, in the first generation, in which step: `chdir@3 hang@12`."""


def value_after(rank: int, value: str, steps: range) -> str:
    """The value that these steps make of `value`; `steps` are global and 1-based."""
    for step in steps:
        epoch, batch = divmod(step - 1, BATCHES)
        value = hashlib.sha256(f"{value} {rank} {step} {epoch + 1} {batch + 1}".encode()).hexdigest()
    return value


def result_of(rank: int) -> str:
    """What an undisturbed training ends with."""
    return value_after(rank, "", range(1, EPOCHS * BATCHES + 1))


class Tally:
    """The whole training state: a chain of hashes and a position in the epoch."""

    def __init__(self) -> None:
        self.value, self._batch = "", 0

    @property
    def batches(self) -> Iterator[int]:
        """The rest of the epoch, then it stands at the next."""
        while self._batch < BATCHES:
            self._batch += 1
            yield self._batch
        self._batch = 0

    def begin(self) -> None:
        """Nothing is loaded."""

    def snapshot(self) -> Snapshot:
        """A copy."""
        copy = Tally()
        copy.value, copy._batch = self.value, self._batch
        return copy

    def write(self, stream: BinaryIO) -> None:
        """All of it."""
        stream.write(json.dumps({"value": self.value, "batch": self._batch}).encode() + b" " * PADDING)

    def read(self, path: Path) -> None:
        """All of it."""
        found = json.loads(path.read_bytes())
        self.value, self._batch = found["value"], found["batch"]

    def versions(self) -> dict[str, str]:
        """There is no framework."""
        return {}


_entries = itertools.count(1)


def train(session: recovery.Session) -> None:
    seen = {
        "entries": next(_entries),
        "pid": os.getpid(),
        "argv": sys.orig_argv,
        "incarnation": session.incarnation,
        "generation": session.generation,
        "processors": sorted(os.sched_getaffinity(0)),
        "environment": {name: value for name, value in os.environ.items() if name.startswith("MS_")},
        "places": {name: os.environ.get(name) for name in ("RANK", "RANK_ID", "LOCAL_RANK", "DEVICE_ID")},
    }
    (HERE / f"seen_{os.environ.get('MS_NODE_ID', session.rank)}.json").write_text(json.dumps(seen))
    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
    place = os.environ["MS_NODE_ID"] if SAVES_BY_NODE else session.rank
    saver = recovery.ModelCheckpoint("small", HERE / f"ckpt/{place}", config)
    state = Tally()
    for step, batch in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
        for deed, its_step in DEEDS_ASKED:
            if step == int(its_step) and (session.generation == 1 or deed == "stand"):
                DEEDS[deed]()
        for held, permission in ((HELD_FIRST, "go_on_first"), (HELD_STEP, "go_on")):
            while step == held and not (HERE / permission).exists():
                session.check()
                time.sleep(0.01)
        epoch = (step - 1) // BATCHES + 1
        state.value = hashlib.sha256(
            f"{state.value} {session.rank} {step} {epoch} {batch}".encode()
        ).hexdigest()
        time.sleep(STEP_MS / 1000)
    (HERE / f"result_{session.rank}").write_text(state.value)


# --- what a test may ask for ---------------------------------------------------------------------------------------------


def _raise() -> None:
    raise ZeroDivisionError("a mistake in the user's own code")


def _leave_the_directory() -> None:
    (HERE / "elsewhere").mkdir(exist_ok=True)
    os.chdir(HERE / "elsewhere")


def _hang() -> None:
    """Wait for ever where nobody but the process's end helps, with a port that a program after exec would inherit."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.set_inheritable(True)
    (HERE / "hangs_at").write_text(str(listening.getsockname()[1]))
    caller, _ = listening.accept()
    caller.set_inheritable(True)
    caller.sendall(b"I hang")
    _stand()


def _stand() -> None:
    """Hang, in every generation."""
    with (HERE / "stands").open("a") as stands:
        stands.write(f"{os.getpid()}\n")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _fork() -> None:
    if not (pid := os.fork()):
        time.sleep(300)
        os._exit(0)
    _note_child(pid)


def _fork_by_multiprocessing() -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), daemon=True)
    child.start()
    _note_child(child.pid or 0)


def _note_child(pid: int) -> None:
    (HERE / "child.part").write_text(str(pid))
    (HERE / "child.part").rename(HERE / "child")


def _raise_unheard() -> None:
    """Frameworks put hooks of their own in place of ours."""
    sys.excepthook = sys.__excepthook__
    _raise()


def _be_deaf() -> None:
    """Hear no SIGTERM any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


DEEDS: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "raise-unheard": _raise_unheard,
    "deaf": _be_deaf,
    "chdir": _leave_the_directory,
    "hang": _hang,
    "stand": _stand,
    "fork": _fork,
    "multiprocessing": _fork_by_multiprocessing,
}


# --- how it begins -------------------------------------------------------------------------------------------------------


def test_train() -> None:
    if os.environ.get("JOB_FACE") == "init":
        train(recovery.init())
    else:
        recovery.run(train)()
    time.sleep(AFTER_S)


if __name__ == "__main__":
    test_train()
