"""The processes that mindspore_recover.py measures: one training under the engine, under MindSpore alone, and as a bare floor.

Every side trains one dense layer on random rows with Model.train, data parallel, in graph mode; a step ends with a sleep of `STEP_MS`.
Not meant to be started by hand: `python mindspore_work.py engine|msrun|upstream|fresh`. `msrun` is the engine's, which tells its steps itself.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, train
from mindspore.communication import get_group_size, get_rank, init
from work_log import mark, note, stepped

STEP_MS = float(os.environ.get("BENCH_STEP_MS", "10"))
SAVE_STEPS = int(os.environ.get("BENCH_SAVE_STEPS", "20"))
# Nobody waits for the end: the measuring process kills all.
EPOCHS = 1_000_000


class Steps(train.Callback):  # type: ignore[misc]  # MindSpore ships no types
    """Ends a step as every side does; where nothing else writes the log, it does."""

    def __init__(self, side: str) -> None:
        super().__init__()
        self._side, self._stops = side, side == "fresh"
        self._is_first = True

    def on_train_step_begin(self, run_context: Any) -> None:
        if self._side == "msrun" and self._is_first:
            mark("loaded", get_rank())
            self._is_first = False

    def on_train_step_end(self, run_context: Any) -> None:
        time.sleep(STEP_MS / 1000)
        if self._side == "msrun":
            stepped(get_rank(), int(run_context.original_args().cur_step_num))
        elif self._side != "engine":
            rank = 0 if self._stops else get_rank()
            note(
                round=int(os.environ.get("BENCH_ROUND", "1")),
                rank=rank,
                step=int(run_context.original_args().cur_step_num),
            )
        if self._stops:
            run_context.request_stop()


def training(model_class: Any, *, parallel: bool, steps: Steps) -> None:
    """Build everything and train."""
    numbers = np.random.default_rng(1)
    rows = numbers.normal(size=(1797, 784)).astype(np.float32)
    labels = np.eye(10, dtype=np.float32)[numbers.integers(10, size=1797)]
    shard = {"num_shards": get_group_size(), "shard_id": get_rank()} if parallel else {}
    data = ds.NumpySlicesDataset((rows, labels), ["row", "label"], **shard).batch(32)
    net = nn.Dense(784, 10)
    model = model_class(net, loss_fn=nn.CrossEntropyLoss(), optimizer=nn.SGD(net.trainable_params(), 1e-2))
    config = train.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
    saver = train.ModelCheckpoint("train", f"ckpt/{get_rank() if parallel else 0}", config)
    model.train(EPOCHS, data, callbacks=[saver, steps])


def main() -> None:
    """Be one side."""
    side = sys.argv[1]
    ms.set_context(mode=ms.GRAPH_MODE)
    if side != "fresh":
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    if side in ("engine", "msrun"):
        from recovery import mindspore as rm  # noqa: PLC0415 - the other sides must not pay for it

        if side == "msrun":
            mark("entered")
        rm.init()
        if side == "msrun":
            mark("world", get_rank())
        training(rm.Model, parallel=True, steps=Steps(side))
    elif side == "upstream":
        init()
        training(ms.Model, parallel=True, steps=Steps(side))
    else:
        training(ms.Model, parallel=False, steps=Steps(side))


if __name__ == "__main__":
    main()
