"""A training of the kind that JOB_KIND names (live_kinds.py), whose ranks end themselves by SIGKILL where JOB_DEATHS says.

Writes per rank: `losses_<rank>.jsonl` (what each step has begun with: sample ids, and the bits of its loss) and `digest_<rank>` (SHA-256 of
each part of the final state).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import recovery
import recovery.torch as rt
from tests.cluster import kept_kinds, live_kinds, live_refused_kinds

KINDS = {**live_kinds.LIVE, **kept_kinds.KEPT, **kept_kinds.MADE_ANEW, **live_refused_kinds.REFUSED}
EPOCHS = 2
DEATHS = [tuple(map(int, one.split(":"))) for one in os.environ.get("JOB_DEATHS", "").split(",") if one]
"""Pairs of rank and step; each falls once."""
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""The step in which rank 0 waits for the file `go_on`, and the others for rank 0."""
SAVE_STEPS = 7


class Moment:
    """What happens to this process in the middle of a step: the forward pass is done, the backward pass is not."""

    def __init__(self, session: recovery.Session) -> None:
        self._session = session
        self._log = Path(f"losses_{session.rank}.jsonl").open("a")  # noqa: SIM115 - until the process ends
        self.ids: list[Any] = []

    def __call__(self, loss: torch.Tensor) -> None:
        session = self._session
        step = session.step + 1
        line = {"generation": session.generation, "step": step, "ids": [*self.ids, float(loss).hex()]}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()
        for number, death in enumerate(DEATHS):
            if death == (session.rank, step) and not Path(f"died_{number}").exists():
                Path(f"died_{number}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if (session.rank, step) == (0, HELD_STEP):
            Path("held").touch()
            while not Path("go_on").exists():
                session.check()
                time.sleep(0.01)


def warm_up() -> None:
    """What JOB_PASS_AHEAD asks for."""
    if "JOB_PASS_AHEAD" in os.environ:
        kept_kinds.do_a_pass(os.environ["JOB_KIND"])


@recovery.run(warm_up=warm_up)
def train(session: recovery.Session) -> None:
    torch.manual_seed(session.rank)
    rt.init_process_group(session)
    moment = Moment(session)
    kind = KINDS[os.environ["JOB_KIND"]](session, moment)
    state = rt.TrainState(**kind.parts)
    # As most people's: it changes nothing, and does not say so.
    callbacks: list[recovery.Callback] = [recovery.Callback(), *kind.callbacks]
    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
    saver = recovery.ModelCheckpoint("train", f"ckpt/{session.rank}", config)
    for step, (rows, ids) in session.steps(state, epochs=EPOCHS, callbacks=[*callbacks, saver]):
        moment.ids = ids.tolist()
        kind.step(step, rows)
    parts = {
        name: digest(part, session.rank) for name, part in kind.parts.items() if not name.startswith("per_")
    }
    Path(f"digest_{session.rank}").write_text(json.dumps(parts))


def digest(part: Any, rank: int) -> str:
    items = part if isinstance(part, list) else [part]
    return hashlib.sha256(repr([readable(content(item, rank)) for item in items]).encode()).hexdigest()[:16]


def content(item: Any, rank: int) -> Any:
    if isinstance(item, DistributedDataParallel):
        item = item.module
    if isinstance(item, nn.Module) and rank:
        # Batch statistics are every rank's own; those of rank 0 count.
        return dict(item.named_parameters())
    if item is None or isinstance(item, (bool, int, float, str)):
        return item
    return item.state_dict()


def readable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), str(value.dtype), value.detach().numpy().tobytes().hex())
    if isinstance(value, dict):
        return [(key, readable(inner)) for key, inner in value.items()]
    return [readable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    kept_kinds.count_wrappers()
    train()
