"""A training whose step is a micro-batch: `python -m tests.torch.accumulating all|rest DIRECTORY LOOP [RANK WORLD VIEW]`.

`all` trains undisturbed and saves behind SAVED_STEP on its way; `rest` begins with that file. Both print a digest of everything.
LOOP decides when gradients are cleared. With a rank it is one of a world: micro-batches but the last are not synchronised.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from typing_extensions import override

from recovery.torch import ResumableLoader, TrainState
from recovery.torch.process_group import change_torch
from recovery.torch.warm_up import warm_up
from tests.torch.fake_session import FakeSession

STEPS, SAVED_STEP, MICRO_BATCHES = 20, 6, 4
LOOPS = ("behind", "before", "zeros", "never")
"""zero_grad() right behind the optimizer's step; before the next backward pass; the same keeping the tensors; not at all."""


class Rows(Dataset[Any]):
    """Some rows."""

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index) / 40) + 0.1 * torch.randn(8)

    def __len__(self) -> int:
        return 36


class Net(nn.Module):
    """Dropout, a sparse embedding, and a layer that only every other optimizer step uses."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.rows, self.drop = nn.Linear(8, 16), nn.Dropout(0.3)
        self.names = nn.Embedding(10, 16, sparse=sparse)
        self.sometimes, self.last = nn.Linear(16, 16), nn.Linear(16, 1)

    @override
    def forward(self, batch: torch.Tensor, step: int) -> torch.Tensor:
        hidden = self.drop(self.rows(batch)) + self.names(torch.tensor([step % 10]))
        if step // MICRO_BATCHES % 2:
            hidden = hidden + self.sometimes(hidden)
        loss: torch.Tensor = self.last(hidden).square().mean()
        return loss


class Accumulating:
    """Two optimizers and a scaler; one step of the session is one micro-batch."""

    def __init__(
        self, loop: str, *, rank: int = 0, world: int = 1, view: bool = False, **options: Any
    ) -> None:
        torch.manual_seed(5 + rank)
        random.seed(5 + rank)
        self.loop, self.world = loop, world
        net = Net(sparse=world == 1)
        others = [parameter for name, parameter in net.named_parameters() if not name.startswith("names")]
        self.net: Any = net
        if world > 1:
            self.net = DistributedDataParallel(net, gradient_as_bucket_view=view, find_unused_parameters=True)
        self.optimizers = [
            torch.optim.AdamW(others, lr=0.01, weight_decay=0.1),
            torch.optim.SGD(net.names.parameters(), lr=0.05),
        ]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        face = FakeSession(rank, world, 1) if world > 1 else FakeSession()
        self.state = TrainState(
            model=self.net,
            optimizer=self.optimizers,
            scaler=self.scaler,
            loader=ResumableLoader(Rows(), 4, session=face),
            **options,
        )

    def micro_batch(self, step: int, batch: torch.Tensor) -> None:
        """One step of the session, counted from 1."""
        last = step % MICRO_BATCHES == 0
        if self.loop in ("before", "zeros") and step % MICRO_BATCHES == 1:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=self.loop == "before")
        with self.net.no_sync() if self.world > 1 and not last else contextlib.nullcontext():
            self.scaler.scale(self.net(batch, step) / MICRO_BATCHES).backward()
        if last:
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
                if self.loop == "behind":
                    optimizer.zero_grad()
            self.scaler.update()

    def run(self, begin: int, path: Path | None) -> None:
        """Train behind step `begin` to the end; save on the way if there is a path."""
        steps = itertools.count(begin + 1)
        while True:
            for batch in self.state.batches:
                step = next(steps)
                self.micro_batch(step, batch)
                if path is not None and step == SAVED_STEP:
                    with path.open("wb") as stream:
                        self.state.write(stream)
                if step == STEPS:
                    return

    def bits(self) -> str:
        """Of everything."""
        whole = [
            *self.net.state_dict().items(),
            ("random", torch.get_rng_state()),
            ("", repr(self.scaler.state_dict())),
        ]
        whole += [(f"{name} grad", parameter.grad) for name, parameter in self.net.named_parameters()]
        readable = [
            (
                name,
                value.to_dense().detach().numpy().tobytes().hex()
                if isinstance(value, torch.Tensor)
                else value,
            )
            for name, value in whole
        ]
        return hashlib.sha256(repr(readable).encode()).hexdigest()


kept_groups: list[Any] = []


def main() -> None:
    """Train one part, as the arguments on the command line ask."""
    part, directory, loop, *world = sys.argv[1:]
    warm_up()
    torch.set_num_threads(1)
    options: dict[str, Any] = {}
    rank = 0
    if world:
        rank, count = int(world[0]), int(world[1])
        options = {"rank": rank, "world": count, "view": world[2] == "view"}
        store = FileStore(f"{directory}/store_{part}", count)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=count)
        # Fact 3 of recovery/torch/process_group.py: dropped with the model it may wait for ever.
        kept_groups.append(distributed.group.WORLD)
        change_torch()
    training = Accumulating(loop, **options)
    path = Path(directory) / f"saved_{rank}"
    if part == "all":
        training.run(0, path)
    else:
        training.state.read(path)
        training.run(SAVED_STEP, None)
    print(training.bits())
    if world:
        # In this order, see ended_groups.py; and before the interpreter ends: a thread of gloo that lets go of its last work behind that aborts the process.
        del training
        distributed.destroy_process_group()
        kept_groups.clear()


if __name__ == "__main__":
    main()
