"""One rank after the other of a world of any shape, in one process.

torch's own process group `fake` answers every collective at once and moves nothing. What is saved and read here needs none, so a test in
which one would be needed ends with other numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from recovery.checkpoint.contribution import FileRole, Layout, Manifest, ManifestFile
from recovery.checkpoint.publish import Content, publish
from recovery.torch import TrainState
from recovery.torch.spread import forget_meshes
from tests.pace import HANG_S

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def as_rank(rank: int, *shape: int) -> Iterator[DeviceMesh]:
    """Be one rank of a mesh."""
    world_size = torch.Size(shape).numel()
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield init_device_mesh(
            "cpu", shape, mesh_dim_names=tuple(f"d{number}" for number in range(len(shape)))
        )
    finally:
        forget_meshes()
        distributed.destroy_process_group()


class Net(nn.Module):
    """One weight of any shape, and a buffer that is whole everywhere."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.register_buffer("seen", torch.tensor(0))


class Training:
    """A model with momentum, of which every value is known."""

    def __init__(
        self, size: Sequence[int], mesh: DeviceMesh | None, placements: Sequence[Placement], filled: bool
    ) -> None:
        whole = known(size) if filled else torch.zeros(*size)
        weight = distribute_tensor(whole, mesh, placements, src_data_rank=None) if mesh is not None else whole
        self.net = Net(weight)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5, momentum=0.9)
        if filled:
            self.net.load_state_dict({"seen": torch.tensor(7)}, strict=False)
            self.optimizer.state[self.net.weight] = {"momentum_buffer": self.net.weight.detach() * -1}
        self.state = TrainState(model=self.net, optimizer=self.optimizer)

    @property
    def momentum(self) -> torch.Tensor:
        found: torch.Tensor = self.optimizer.state[self.net.weight]["momentum_buffer"]
        return found


def known(size: Sequence[int]) -> torch.Tensor:
    """The whole weight: no two elements alike."""
    return torch.arange(1.0, torch.Size(size).numel() + 1).reshape(*size)


def save(
    directory: Path,
    state: TrainState,
    *,
    rank: int,
    world_size: int,
    step: int = 10,
    generation: int = 1,
    job: str = "here",
    layout: Layout = Layout.SHARDED,
) -> Path:
    """Publish what `state` writes, as a rank of a job would."""

    def manifest(files: tuple[ManifestFile, ...]) -> Manifest:
        return Manifest(
            job=job, run=1, rank=rank, world_size=world_size, incarnation=1, generation=generation, step=step, epoch=1,
            step_in_epoch=step, files=files, layout=layout, versions={}, integrated=layout is Layout.RANK,
        )  # fmt: skip

    role = FileRole.STATE if layout is Layout.RANK else FileRole.SHARD
    _, path = publish(directory / str(rank), [Content(f"train-1_{step}.ckpt", state.write, role)], manifest)
    return path


def export(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Call `recovery export-weights` as a person does."""
    return subprocess.run(
        [sys.executable, "-m", "recovery", "export-weights", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


def save_all(
    directory: Path,
    shape: Sequence[int],
    size: Sequence[int],
    placements: Sequence[Placement],
    *,
    step: int = 10,
) -> None:
    """Save a filled training from every rank of a mesh."""
    world_size = torch.Size(shape).numel()
    for rank in range(world_size):
        with as_rank(rank, *shape) as mesh:
            training = Training(size, mesh, placements, filled=True)
            save(directory, training.state, rank=rank, world_size=world_size, step=step)
