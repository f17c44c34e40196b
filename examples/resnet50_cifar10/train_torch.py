"""ResNet-50 on CIFAR-10 with PyTorch on N workers, with disaster recovery. The same script is the scheduler where MS_ROLE=MS_SCHED.

bash run.sh                     # 8 workers and the scheduler, logs under device/
kill -9 <pid of a worker>       # whichever
bash recover.sh                 # starts again what died; the result is the same, bit for bit
"""

from __future__ import annotations

import functools
import hashlib
import sys
import time
from pathlib import Path

import cifar10
import options
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import recovery
import recovery.torch as rt

OPTIONS = options.parse(sys.argv[1:] if __name__ == "__main__" else [])

# Of CIFAR-10's pixels, scaled to 0..1: as MindSpore's documents write them.
MEAN = torch.tensor([0.4465, 0.4822, 0.4914])[:, None, None]
DEVIATION = torch.tensor([0.2010, 0.1994, 0.2023])[:, None, None]
EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut; the last one has four times the channels."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        outputs = channels * EXPANSION
        self.body = nn.Sequential(
            *convolution(inputs, channels, 1),
            nn.ReLU(),
            *convolution(channels, channels, 3, stride),
            nn.ReLU(),
            *convolution(channels, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(images) + self.shortcut(images))


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution without bias and its batch normalisation."""
    made = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return made, nn.BatchNorm2d(outputs)


def resnet(width: int, blocks: tuple[int, ...]) -> nn.Sequential:
    """ResNet-50 where width is 64 and blocks are 3, 4, 6, 3."""
    layers: list[nn.Module] = [*convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    inputs = width
    for stage, count in enumerate(blocks):
        channels = width * 2**stage
        for number in range(count):
            layers.append(Bottleneck(inputs, channels, 2 if stage and not number else 1))
            inputs = channels * EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, cifar10.CLASSES))


class Images(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images float32 [3, resize, resize], cropped and mirrored at random, with labels int64 []."""

    def __init__(self, directory: Path, samples: int, resize: int) -> None:
        images, labels = cifar10.read(directory)
        self._images = torch.from_numpy(images)[: samples or None]
        self._labels = torch.from_numpy(labels).to(torch.int64)[: samples or None]
        self._resize = resize

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = functional.pad(self._images[index], (4, 4, 4, 4))
        top, left = torch.randint(9, (2,)).tolist()
        image = image[:, top : top + cifar10.SIZE, left : left + cifar10.SIZE]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        scaled = image.to(torch.float32) / 255.0
        if self._resize != cifar10.SIZE:
            scaled = functional.interpolate(scaled[None], size=self._resize, mode="bilinear")[0]
        return (scaled - MEAN) / DEVIATION, self._labels[index]


@functools.lru_cache
def load_data() -> Images:
    return Images(cifar10.find(OPTIONS.data), OPTIONS.samples, OPTIONS.resize)


@recovery.run(warm_up=load_data)
def train(session: recovery.Session) -> None:
    torch.manual_seed(1)
    device, backend = place_of(session)
    rt.init_process_group(session, backend)
    net = DistributedDataParallel(resnet(OPTIONS.width, OPTIONS.blocks).to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    loader = rt.ResumableLoader(load_data(), batch_size=OPTIONS.batch_size, session=session, drop_last=True)
    state = rt.TrainState(model=net, optimizer=optimizer, loader=loader, gradients=False)

    # A directory per rank, and at least two kept: a save can fail half-way.
    config = recovery.CheckpointConfig(save_checkpoint_steps=OPTIONS.save_steps, keep_checkpoint_max=5)
    saver = recovery.ModelCheckpoint("train", f"./ckpt_of_rank/{session.rank}", config)
    callbacks = [recovery.LossMonitor(1), saver]

    for _, (images, labels) in session.steps(state, epochs=OPTIONS.epochs, callbacks=callbacks):
        optimizer.zero_grad()
        loss = loss_fn(net(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        session.report(loss=loss)
        time.sleep(OPTIONS.step_ms / 1000)

    write_digest(net.module, session.rank)


def place_of(session: recovery.Session) -> tuple[torch.device, str]:
    """A device for each rank of this host and nccl, where there are as many; else the processor and gloo."""
    if torch.cuda.device_count() < session.local_world_size:
        return torch.device("cpu"), "gloo"
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda", session.local_rank)
    torch.cuda.set_device(device)
    return device, "nccl"


def write_digest(net: nn.Module, rank: int) -> None:
    """Keep the SHA-256 of weights and running statistics. The statistics are each rank's own, so the digests of two ranks differ."""
    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    print(f"final weights of rank {rank}: sha256 {digest.hexdigest()}", flush=True)
    Path("device").mkdir(exist_ok=True)
    Path(f"device/weights_{rank}.sha256").write_text(digest.hexdigest() + "\n")


def test_train() -> None:
    """`pytest -s -v train_torch.py` starts it too, as MindSpore's documents do: in a copy, since this repository has
    settings of its own for pytest."""
    train()


if __name__ == "__main__":
    train()
