"""ResNet-50 on CIFAR-10 with MindSpore on N workers: the script of its documents, three lines changed (marked "< ").

FRAMEWORK=mindspore bash run.sh     # 8 workers and the scheduler, logs under device/
kill -9 <pid of a worker>           # whichever
FRAMEWORK=mindspore bash recover.sh
"""

import hashlib
import sys
import time
from pathlib import Path

import cifar10
import mindspore as ms
import mindspore.dataset as ds
import options
from mindspore import nn, train
from mindspore.communication import get_group_size, get_rank  # < init comes from below

from recovery.mindspore import Model, init  # < for MindSpore's own of these names

OPTIONS = options.parse(sys.argv[1:] if __name__ == "__main__" else [])
EXPANSION = 4


class Bottleneck(nn.Cell):
    """Three convolutions beside a shortcut; the last one has four times the channels."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        outputs = channels * EXPANSION
        self.body = nn.SequentialCell(
            *convolution(inputs, channels, 1),
            nn.ReLU(),
            *convolution(channels, channels, 3, stride),
            nn.ReLU(),
            *convolution(channels, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.SequentialCell() if same else nn.SequentialCell(*convolution(inputs, outputs, 1, stride))
        )
        self.relu = nn.ReLU()

    def construct(self, images):
        return self.relu(self.body(images) + self.shortcut(images))


def convolution(inputs, outputs, size, stride=1):
    """A convolution without bias and its batch normalisation."""
    made = nn.Conv2d(
        inputs, outputs, size, stride, pad_mode="pad", padding=size // 2, weight_init="he_normal"
    )
    return made, nn.BatchNorm2d(outputs)


class ResNet(nn.Cell):
    """ResNet-50 where width is 64 and blocks are 3, 4, 6, 3."""

    def __init__(self, width, blocks):
        super().__init__()
        layers = [
            *convolution(3, width, 7, 2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="same"),
        ]
        inputs = width
        for stage, count in enumerate(blocks):
            channels = width * 2**stage
            for number in range(count):
                layers.append(Bottleneck(inputs, channels, 2 if stage and not number else 1))
                inputs = channels * EXPANSION
        self.layers = nn.SequentialCell(*layers)
        self.classes = nn.Dense(inputs, cifar10.CLASSES)

    def construct(self, images):
        return self.classes(self.layers(images).mean((2, 3)))


def create_dataset():
    """As the documents have it. One thread draws the random crops: with more the order of the draws would be by chance."""
    dataset = ds.Cifar10Dataset(
        str(cifar10.find(OPTIONS.data)),
        usage="train",
        num_samples=OPTIONS.samples // get_group_size() or None,
        num_shards=get_group_size(),
        shard_id=get_rank(),
        num_parallel_workers=1,
    )
    dataset = dataset.map(ds.transforms.TypeCast(ms.int32), "label")
    augmented = [
        ds.vision.RandomCrop((32, 32), (4, 4, 4, 4)),
        ds.vision.RandomHorizontalFlip(),
        ds.vision.Resize((OPTIONS.resize, OPTIONS.resize)),
        ds.vision.Rescale(1.0 / 255.0, 0.0),
        ds.vision.Normalize((0.4465, 0.4822, 0.4914), (0.2010, 0.1994, 0.2023)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(augmented, "image", num_parallel_workers=1)
    dataset = dataset.shuffle(buffer_size=10)
    return dataset.batch(OPTIONS.batch_size, drop_remainder=True)


class Slow(train.Callback):
    def on_train_step_end(self, run_context):
        time.sleep(OPTIONS.step_ms / 1000)


def write_digest(net, rank):
    """Keep the SHA-256 of weights and moving averages. The averages are each rank's own, so the digests of two ranks differ."""
    digest = hashlib.sha256()
    for parameter in sorted(net.get_parameters(), key=lambda parameter: parameter.name):
        digest.update(parameter.name.encode() + parameter.asnumpy().tobytes())
    print(f"final weights of rank {rank}: sha256 {digest.hexdigest()}", flush=True)
    Path("device").mkdir(exist_ok=True)
    Path(f"device/weights_{rank}.sha256").write_text(digest.hexdigest() + "\n")


def test_train():
    """`pytest -s -v train_mindspore.py` starts it too, as MindSpore's documents do: in a copy, since this repository has
    settings of its own for pytest."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    init()
    ms.set_seed(1)
    net = ResNet(OPTIONS.width, OPTIONS.blocks)
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    # A directory per rank, and at least two kept: a save can fail half-way.
    ckpt_config = train.CheckpointConfig(save_checkpoint_steps=OPTIONS.save_steps, keep_checkpoint_max=5)
    ckpoint_cb = train.ModelCheckpoint(
        prefix="train", directory="./ckpt_of_rank/" + str(get_rank()), config=ckpt_config
    )
    model = Model(net, loss_fn=loss_fn, optimizer=optimizer)  # < for ms.Model
    model.train(OPTIONS.epochs, create_dataset(), callbacks=[train.LossMonitor(), ckpoint_cb, Slow()])
    write_digest(net, get_rank())


if __name__ == "__main__":
    test_train()
