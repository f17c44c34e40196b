"""Handwritten digits on N workers with MindSpore: the disaster_recover example of its documents, three lines changed (marked "< ").

FRAMEWORK=mindspore bash run.sh     # 8 workers and the scheduler, logs under device/
kill -9 <pid of a worker>           # whichever
FRAMEWORK=mindspore bash recover.sh
"""

import hashlib
import os
import time
from pathlib import Path

import digits
import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, train
from mindspore.communication import get_group_size, get_rank  # < init comes from below

from recovery.mindspore import Model, init  # < for MindSpore's own of these names

EPOCHS = int(os.environ.get("EPOCHS", "10"))
STEP_MS = int(os.environ.get("STEP_MS", "0"))  # slows the steps, so that there is time to kill something
SAVE_STEPS = int(os.environ.get("SAVE_STEPS", "100"))

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
init()
ms.set_seed(1)


class Network(nn.Cell):
    """One dense layer: 28 x 28 pixels to 10 digits."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(28 * 28, 10, weight_init="normal", bias_init="zeros")
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.relu(self.fc(self.flatten(x)))


def create_dataset(batch_size):
    dataset = ds.MnistDataset(str(digits.find()), num_shards=get_group_size(), shard_id=get_rank())
    image_transforms = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size)


class Slow(train.Callback):
    def on_train_step_end(self, run_context):
        time.sleep(STEP_MS / 1000)


def write_digest(net, rank):
    """Print the SHA-256 of the final weights and keep it in device/weights_<rank>.sha256."""
    digest = hashlib.sha256()
    for parameter in sorted(net.get_parameters(), key=lambda parameter: parameter.name):
        digest.update(parameter.name.encode() + parameter.asnumpy().tobytes())
    print(f"final weights of rank {rank}: sha256 {digest.hexdigest()}", flush=True)
    Path("device").mkdir(exist_ok=True)
    Path(f"device/weights_{rank}.sha256").write_text(digest.hexdigest() + "\n")


net = Network()
data_set = create_dataset(32)
optimizer = nn.SGD(net.trainable_params(), 1e-2)
loss_fn = nn.CrossEntropyLoss()
loss_cb = train.LossMonitor(20)
ckpt_config = train.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=5)
ckpoint_cb = train.ModelCheckpoint(
    prefix="train", directory="./ckpt_of_rank/" + str(get_rank()), config=ckpt_config
)
model = Model(net, loss_fn=loss_fn, optimizer=optimizer)  # < for ms.Model
model.train(EPOCHS, data_set, callbacks=[loss_cb, ckpoint_cb, Slow()])
write_digest(net, get_rank())
