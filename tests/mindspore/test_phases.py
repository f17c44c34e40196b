"""What MindSpore's loop is at is told with the heartbeats: its evaluations and its saves are no part of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import LAUNCHER, LaunchedCluster
from tests.warm.process import MINDSPORE

pytestmark = [pytest.mark.mindspore, pytest.mark.cluster]

SCRIPT = """
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, train

import recovery
import recovery.mindspore as rm

rm.init()
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)

def note(what):
    phase = recovery.current_session().phases.report().phase.value
    with Path(what).open("a") as file:
        file.write(f"{phase}\\n")

class Saver(train.ModelCheckpoint):
    def on_train_step_end(self, run_context):
        note("saves")
        super().step_end(run_context)

class Watch(train.Callback):
    def on_train_step_begin(self, run_context):
        note("trains")

    def on_eval_step_begin(self, run_context):
        note("evaluates")

    def on_train_end(self, run_context):
        note("ends")

rows = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
data = lambda: ds.NumpySlicesDataset((rows, rows[:, :1]), ["row", "label"], shuffle=False).batch(4)
net = nn.Dense(8, 1)
config = train.CheckpointConfig(save_checkpoint_steps=5, keep_checkpoint_max=3)
model = rm.Model(net, loss_fn=nn.MSELoss(), optimizer=nn.Adam(net.trainable_params()), metrics={"mse": nn.MSE()})
callbacks = [Saver(prefix="train", directory="ckpt/0", config=config), Watch()]
model.fit(2, data(), data(), callbacks=callbacks, dataset_sink_mode=False, valid_dataset_sink_mode=False)
note("ends")
"""


def test_evaluations_and_saves_are_told(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(SCRIPT)
    with LaunchedCluster(tmp_path, workers=1, imports=MINDSPORE) as cluster:
        cluster.start("--max_restarts=0", script="fit.py")
        assert cluster.wait_exit(LAUNCHER) == 0, cluster.tails()

    told = {name: (tmp_path / name).read_text().split() for name in ("trains", "evaluates", "saves")}
    assert told["trains"][0] == "start"
    # What follows an evaluation is one until that step is applied.
    assert {*told["trains"][1:8], *told["trains"][9:]} == {"step"}
    assert {*told["evaluates"]} == {"evaluation"}
    assert {*told["saves"][1:]} == {"save"}
    assert (tmp_path / "ends").read_text().split() == ["end", "end"]
