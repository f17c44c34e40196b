"""What the jobs of transformers and of Accelerate share: a model with dropout, data of which every rank can tell what it saw, places to wait at."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

import recovery

SAMPLES = int(os.environ.get("JOB_SAMPLES", "150"))
"""Of two ranks with batches of 4: 19 batches an epoch, the last one ragged."""
HELD = os.environ.get("JOB_HELD", "")
"""`step@12`: where the first generation waits for the file `go_on`; each rank leaves a file `at_<rank>` there."""
HELD_STEP = int(os.environ.get("JOB_HELD_STEP", "0"))
"""A step that does not end before the file `go_on` is there, in any generation."""
STEP_MS = int(os.environ.get("JOB_STEP_MS", "0"))
DRAWS = os.environ.get("JOB_DRAWS") == "1"
"""Fetching a sample draws."""
UNFREEZES = os.environ.get("JOB_UNFREEZES") == "1"
"""The first layer is trained from the second epoch on."""
ADDS = os.environ.get("JOB_ADDS") == "1"
"""So it is, and its optimizer has it from then on, in a group of its own. DistributedDataParallel is made while it is frozen."""
HOOK = os.environ.get("JOB_HOOK") == "1"
"""Gradients go compressed, by PowerSGD, whose hook keeps what that leaves out and draws."""
HOOK_OPTIONS = {"start_powerSGD_iter": 3, "min_compression_rate": 0.5, "random_seed": 7}


def sample(index: int) -> dict[str, Any]:
    """One sample, always the same."""
    generator = torch.Generator().manual_seed(index)
    rows = torch.randn(8, generator=generator)
    if DRAWS:
        rows = rows + torch.rand(8)
    return {"ids": index, "rows": rows, "labels": int(rows.sum() > 0)}


class Samples(Dataset[dict[str, Any]]):
    """With a length."""

    def __init__(self, count: int, first: int = 0) -> None:
        self._count, self._first = count, first

    def __len__(self) -> int:
        return self._count

    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(self._first + index)


class Stream(IterableDataset[dict[str, Any]]):
    """Without one."""

    def __init__(self, count: int) -> None:
        self._count = count

    @override
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(sample(index) for index in range(self._count))


class Net(nn.Module):
    """Returns a loss, as models of transformers do. It notes the ids of the samples that it trained on since it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
        self.seen: list[int] = []
        self.layers[0].requires_grad_(not ADDS)
        self.register_buffer("steps", torch.zeros(1), persistent=False)

    def trained(self) -> list[nn.Parameter]:
        """What an optimizer is given at first."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def add_to(self, optimizer: torch.optim.Optimizer) -> None:
        """At the begin of the second epoch."""
        self.layers[0].requires_grad_(True)
        optimizer.add_param_group({"params": self.layers[0].parameters(), "lr": 0.02})

    @override
    def forward(self, ids: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen += ids.tolist()
            self.get_buffer("steps").add_(1)
        logits = self.layers(rows) * (1 + 0.001 * self.get_buffer("steps"))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def log(session: recovery.Session | None, name: str, step: int, ids: list[Any]) -> None:
    """Append to this rank's log of this name."""
    generation, rank = (session.generation, session.rank) if session else (1, 0)
    with Path(f"{name}_{rank}.jsonl").open("a") as file:
        file.write(json.dumps({"generation": generation, "step": step, "ids": ids}) + "\n")


def enter(session: recovery.Session | None) -> None:
    """Log which process enters the training function."""
    log(session, "entries", session.generation if session else 1, [os.getpid()])


def note(session: recovery.Session | None, step: int, net: Net) -> None:
    """Log the samples of a step."""
    log(session, "samples", step, net.seen)
    net.seen = []
    time.sleep(STEP_MS / 1000)
    while session is not None and step == HELD_STEP and not Path("go_on").exists():
        session.check()
        time.sleep(0.02)


def hold(session: recovery.Session | None, place: str, step: int) -> None:
    """Wait, if this is where the first generation is to wait."""
    if session is None or session.generation != 1 or f"{place}@{step}" != HELD:
        return
    Path(f"at_{session.rank}").write_text(str(os.getpid()))
    while not Path("go_on").exists():
        session.check()
        time.sleep(0.02)


def finish(session: recovery.Session | None, net: nn.Module, *more: Any) -> None:
    """Write what this rank ends with."""
    sha256 = hashlib.sha256()
    for name, tensor in net.state_dict().items():
        sha256.update(name.encode() + tensor.contiguous().numpy().tobytes())
    sha256.update(json.dumps(more, sort_keys=True).encode())
    Path(f"digest_{session.rank if session else 0}").write_text(
        sha256.hexdigest() + json.dumps(more, sort_keys=True)
    )
