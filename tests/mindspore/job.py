"""The MindSpore training that the tests run: small, real, and configured by its environment.

Writes beside its logs, per rank: `samples_<rank>.jsonl` (the sample ids of every step it did, with generation) and `digest_<rank>`
(SHA-256 of the final weights).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, train
from mindspore.communication import get_group_size, get_rank

import recovery
import recovery.mindspore as rm
from recovery.core.worker import barrier

SAMPLES, BATCH = 240, int(os.environ.get("JOB_BATCH", "4"))
EPOCHS = int(os.environ.get("JOB_EPOCHS", "5"))
PLANNED_EPOCHS = int(os.environ.get("JOB_PLANNED_EPOCHS", str(EPOCHS)))
"""Its rates, one for each step, are of as many: they are a part of the checkpoint."""
RATE = float(os.environ.get("JOB_RATE", "0.02"))
OVERRIDE: dict[str, list[str]] = json.loads(os.environ.get("JOB_OVERRIDE", "{}"))
SAVE_STEPS = int(os.environ.get("JOB_SAVE_STEPS", "10"))
STEP_MS = int(os.environ.get("JOB_STEP_MS", "20"))
LOOP = os.environ.get("JOB_LOOP", "model")
SINK = os.environ.get("JOB_SINK") == "1"
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A step that does not begin before the file `go_on` is there: what a test does to the job is done by then. -1: what comes behind the loop."""
RAISE_AT = int(os.environ.get("JOB_RAISE_AT", "0"))
barrier.ANSWER_MS = int(os.environ.get("JOB_ANSWER_MS", barrier.ANSWER_MS))
"""How long a worker that is asked to end waits for the scheduler's answer: no setting, and too short for a scheduler on a busy machine."""
ENDS_AFTER = os.environ.get("JOB_ENDS_AFTER", "")
LEAVES_AFTER = os.environ.get("JOB_LEAVES_AFTER", "")
"""When the job is done, each rank leaves when this file is there; `{rank}` in its name is the rank."""
CONFIG: dict[str, Any] = json.loads(os.environ.get("JOB_CONFIG", "{}"))
KEY = os.environ.get("JOB_KEY", "").encode() or None

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
if "JOB_PS" in os.environ:
    rm.set_ps_context(**json.loads(os.environ["JOB_PS"]))


def leave_late() -> None:
    while LEAVES_AFTER and not Path(LEAVES_AFTER.format(rank=get_rank())).exists():
        time.sleep(0.02)


# Handlers run in the reverse order: this one behind recovery's, before MindSpore's.
atexit.register(leave_late)
session = rm.init()
ms.set_seed(1)
Path(f"seen_{get_rank()}.json").write_text(
    json.dumps({name: os.environ[name] for name in os.environ if name.startswith("MS_")})
)


class Network(nn.Cell):  # type: ignore[misc]  # MindSpore ships no types
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Dense(8, 16)
        self.relu = nn.ReLU()
        self.out = nn.Dense(16, 1)

    def construct(self, x: Any) -> Any:
        return self.out(self.relu(self.hidden(x)))


class Watched(train.Callback):  # type: ignore[misc]  # MindSpore ships no types
    """Notes which samples a step used."""

    def on_train_step_begin(self, run_context: Any) -> None:
        now = run_context.original_args()
        hold(session.step + 1)
        if now.cur_step_num == RAISE_AT:
            raise ZeroDivisionError("a mistake in the user's own code")
        if not SINK:
            left = (EPOCHS - now.cur_epoch_num + 1) * now.batch_num - (now.cur_step_num - 1) % now.batch_num
            assert session.total_steps == session.step + left, "the launcher's line tells when it ends"
            note(session.step + 1, now.train_dataset_element[1])

    def on_train_step_end(self, run_context: Any) -> None:
        time.sleep(STEP_MS / 1000)


def hold(step: int) -> None:
    while step == HELD_STEP and not Path("go_on").exists():
        session.check()
        time.sleep(0.02)


def note(step: int, labels: Any) -> None:
    ids = [round(float(label) * SAMPLES) for label in labels.asnumpy()[:, 0]]
    with Path(f"samples_{get_rank()}.jsonl").open("a") as log:
        log.write(json.dumps({"step": int(step), "generation": session.generation, "ids": ids}) + "\n")


def dataset() -> Any:
    rows = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype(np.float32)
    labels = np.arange(SAMPLES, dtype=np.float32)[:, None] / SAMPLES
    made = ds.NumpySlicesDataset(
        (rows, labels),
        ["row", "label"],
        shuffle=True,
        num_shards=get_group_size(),
        shard_id=get_rank(),
        num_parallel_workers=1,
    )
    made = made.map(lambda row: row + np.random.normal(scale=0.1), "row", num_parallel_workers=1)
    made = made.map(ds.transforms.TypeCast(ms.float32), "row")
    return made.batch(BATCH)


def optimizer_of(net: Any) -> Any:
    steps = PLANNED_EPOCHS * SAMPLES // BATCH
    rates = nn.cosine_decay_lr(0.0, RATE, steps, SAMPLES // BATCH, PLANNED_EPOCHS)
    return nn.Adam(net.trainable_params(), learning_rate=rates)


def with_model(net: Any) -> None:
    config = train.CheckpointConfig(
        **{"save_checkpoint_steps": SAVE_STEPS, "keep_checkpoint_max": 5, "enc_key": KEY, **CONFIG}
    )
    saver = train.ModelCheckpoint(prefix="train", directory=f"ckpt/{get_rank()}", config=config)
    model = rm.Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer_of(net), recovery_override=OVERRIDE)
    model.train(EPOCHS, dataset(), callbacks=[train.LossMonitor(5), saver, Watched()], dataset_sink_mode=SINK)


def with_a_loop_of_its_own(net: Any) -> None:
    """As the documents of msrun write it: value_and_grad and DistributedGradReducer."""
    optimizer, loss_fn = optimizer_of(net), nn.MSELoss()

    def forward(rows: Any, labels: Any) -> Any:
        return loss_fn(net(rows), labels)

    gradients_of = ms.value_and_grad(forward, None, net.trainable_params())
    reduce = nn.DistributedGradReducer(optimizer.parameters)

    state = rm.TrainState(network=net, optimizer=optimizer, dataset=dataset(), override=OVERRIDE)
    config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=5, **CONFIG)
    saver = recovery.ModelCheckpoint("train", f"ckpt/{get_rank()}", config)
    for step, (rows, labels) in session.steps(state, epochs=EPOCHS, callbacks=[saver]):
        hold(step)
        note(step, labels)
        loss, gradients = gradients_of(rows, labels)
        optimizer(reduce(gradients))
        session.report(loss=float(loss))
        time.sleep(STEP_MS / 1000)


network = Network()
(with_model if LOOP == "model" else with_a_loop_of_its_own)(network)
Path(f"evaluating_{get_rank()}").touch()
hold(-1)
weights = b"".join(
    parameter.asnumpy().tobytes() for parameter in sorted(network.get_parameters(), key=lambda one: one.name)
)
Path(f"digest_{get_rank()}").write_text(hashlib.sha256(weights).hexdigest())
while ENDS_AFTER and not Path(ENDS_AFTER).exists():
    time.sleep(0.02)
