"""One rank of a training that loses a rank: `python -m tests.torch.live_rank ROLE RANK WORLD DIRECTORY CASE...`.

Roles: `all` trains undisturbed to LAST. `dies` and `stays` train to a step and through the backward pass of the step behind it; then `dies`
ends, and `stays` goes on in a new world with `fresh`, which has the place of the lost rank and other weights. Each prints, a JSON object
a line, a digest of everything it has at the end of each step: `bits` read off its objects, `digest` as live rollback gives it.

Cases: `kept` objects in the survivors, `accumulate` gradients over two steps, `view` of DDP's buckets, `pieces` of a few bytes on the wire,
`start` before the first step; `late`: rank 2 is not clean, and takes; `torn`, `changed`, `alone` (`no_sync`): nobody is clean; `compiled`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import sys
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset
from typing_extensions import override

from recovery.torch import ResumableLoader, TrainState, live_transfer, process_group
from recovery.torch.ended_groups import EndedGroups
from recovery.torch.live_memory import LiveMemory
from recovery.torch.warm_up import warm_up
from recovery.training.live import StepPosition
from tests.torch.fake_session import FakeSession, report

LAST = 6
_ended_groups = EndedGroups()


class Rows(Dataset[Any]):
    """Fewer batches than steps: the epoch ends on the way."""

    @override
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((6,), float(index) / 20) + 0.1 * torch.randn(6)

    def __len__(self) -> int:
        return 32


class Objects:
    """What a training function builds, but for the wrapper."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net: Any = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)
        )
        self.critic: Any = nn.Linear(6, 1)
        weights = [self.net[0].weight, self.net[4].weight]
        others = [one for one in self.net.parameters() if one.ndim == 1]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.02}], lr=0.01
            ),
            torch.optim.SGD(self.critic.parameters(), lr=0.05, momentum=0.9),
        ]
        self.schedules = [
            torch.optim.lr_scheduler.StepLR(self.optimizers[0], 2, 0.5),
            torch.optim.lr_scheduler.MultiStepLR(self.optimizers[1], [2, 4]),
        ]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.average = AveragedModel(
            self.net,
            multi_avg_fn=get_ema_multi_avg_fn(0.9),  # type: ignore[no-untyped-call]  # torch ships it without types
        )


@functools.cache
def kept_objects() -> Objects:
    """What `session.keep` would keep."""
    return Objects(5)


def step_of(cases: set[str] | list[str]) -> int:
    """Behind which step the rank is lost: `start` before an optimizer has any state."""
    return 0 if "start" in cases else 3


class Training:
    """One entry of the training function."""

    def __init__(self, objects: Objects, rank: int, world: int, cases: set[str], *, live: bool) -> None:
        self.objects, self.rank, self.cases = objects, rank, cases
        session = FakeSession(rank, world)
        session.plan_is_live = live
        view = "view" in cases
        nets = [objects.net, objects.critic]
        if "compiled" in cases:
            nets = [torch.compile(net, backend="eager") for net in nets]
        self.nets: list[Any] = [DistributedDataParallel(net, gradient_as_bucket_view=view) for net in nets]
        self.loader = ResumableLoader(Rows(), 4, session=session)
        self.state = TrainState(
            model=self.nets,
            optimizer=objects.optimizers,
            lr_scheduler=objects.schedules,
            scaler=objects.scaler,
            average=objects.average,
            loader=self.loader,
        )
        assert self.state.why_not_live() == ()
        # The seed of the job, whatever the weights were made with.
        torch.manual_seed(5)

    def batches(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def backward(self, step: int, batch: torch.Tensor) -> None:
        if "accumulate" not in self.cases or step % 2:
            for optimizer in self.objects.optimizers:
                optimizer.zero_grad()
        with contextlib.ExitStack() as alone:
            if "alone" in self.cases and step == 3:
                for net in self.nets:
                    alone.enter_context(net.no_sync())
            loss = self.nets[0](batch).square().mean() + self.nets[1](batch).square().mean()
            self.objects.scaler.scale(loss).backward()

    def optimize(self, step: int) -> None:
        if "accumulate" in self.cases and step % 2:
            return
        for optimizer in self.objects.optimizers:
            self.objects.scaler.step(optimizer)
        self.objects.scaler.update()
        self.objects.average.update_parameters(self.objects.net)
        for schedule in self.objects.schedules:
            schedule.step()

    def bits(self) -> dict[str, str]:
        """Of everything, read off the objects."""
        objects = self.objects
        whole: dict[str, Any] = {
            "net": objects.net.state_dict(),
            "critic": objects.critic.state_dict(),
            "average": objects.average.state_dict(),
            "optimizers": [one.state_dict() for one in objects.optimizers],
            "schedules": [one.state_dict() for one in objects.schedules],
            "scaler": objects.scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "gradients": [one.grad for net in (objects.net, objects.critic) for one in net.parameters()],
        }
        return {
            name: hashlib.sha256(repr(_readable(value)).encode()).hexdigest()[:16]
            for name, value in whole.items()
        }


def _readable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), str(value.dtype), value.detach().numpy().tobytes().hex())
    if isinstance(value, dict):
        return [(key, _readable(inner)) for key, inner in value.items()]
    return [_readable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _train(
    training: Training, memory: LiveMemory, begin: int, end: int
) -> Generator[tuple[int, Any], None, None]:
    """Train to the end of `end`, and give the batch behind it."""
    step = begin
    memory.next_step(step)
    for batch in training.batches():
        step += 1
        if step > end:
            yield step, batch
            return
        training.backward(step, batch)
        if "alone" not in training.cases or step != 3:
            training.optimize(step)
        memory.boundary(step)
        report(step=step, bits=training.bits(), digest=memory.digest(), why=memory.why_not())
        memory.next_step(step)


def _enter_world(directory: Path, generation: int, rank: int, world: int) -> FileStore:
    store = FileStore(str(directory / f"store_{generation}"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    # Facts 1 to 3 of ended_groups.py: dropped with the model it may wait for ever, and at the interpreter's end a thread of it may abort the process.
    _ended_groups.keep([distributed.group.WORLD])
    process_group.change_torch()
    return FileStore(str(directory / f"notes_{generation}"), -1)


def _leave(training: Training, memory: LiveMemory, step: int, batch: torch.Tensor) -> tuple[str, str]:
    """The world breaks in the backward pass of the step behind the boundary, or a little later."""
    if "alone" not in training.cases:
        training.backward(step, batch)
    training.optimize(step) if "torn" in training.cases else None
    if "changed" in training.cases or ("late" in training.cases and training.rank == 2):
        with torch.no_grad():
            training.objects.net[0].weight.mul_(2)
    # What moves on in the middle of a step, and is not the optimizer's.
    training.objects.schedules[0].step()
    training.objects.optimizers[0].param_groups[0]["lr"] = 7.0
    offer = memory.offer()
    distributed.destroy_process_group()
    return offer


def _first_entry(role: str, rank: int, world: int, directory: Path, cases: set[str]) -> LiveMemory | None:
    """Train until the world ends; the memory, if training goes on from it. Only what is kept outside is left of the rest."""
    _enter_world(directory, 1, rank, world)
    training = Training(kept_objects(), rank, world, cases, live=False)
    memory = training.state.live_memory()
    memory.begin(0)
    steps = _train(training, memory, 0, LAST if role == "all" else step_of(cases))
    for step, batch in steps:
        if role == "all":
            break
        if role == "dies":
            if "alone" not in cases:
                training.backward(step, batch)
            if "torn" in cases:
                training.optimize(step)
            os._exit(9)
        shapes, why_not = _leave(training, memory, step, batch)
        report(shapes=shapes, why_not=why_not, again=memory.offer() == (shapes, why_not))
        wrappers = [weakref.ref(net) for net in training.nets]
        if not why_not or "late" in cases:
            steps.close()
            del training, steps
            gc.collect()
            report(wrappers_left=sum(wrapper() is not None for wrapper in wrappers))
            return memory
    return None


def _second_entry(memory: LiveMemory | None, rank: int, world: int, directory: Path, cases: set[str]) -> None:
    notes = _enter_world(directory, 2, rank, world)
    process_group._world = process_group.World(_live_session(rank, world), "gloo", process_group._TIMEOUT)
    objects = kept_objects() if "kept" in cases and memory is not None else Objects(6 + rank)
    before = [parameter.detach().clone() for parameter in objects.net.parameters()]
    training = Training(objects, rank, world, cases, live=True)
    report(left_alone=all(map(torch.equal, before, objects.net.parameters())))
    if rank == 1:
        notes.set("shapes", training.state.live_parts().structure())
    memory = memory or training.state.live_memory()
    step = step_of(cases)
    digest = memory.transfer(
        training.state,
        source=1,
        rank=rank,
        shapes=notes.get("shapes").decode(),
        at=StepPosition(step, 1, step),
    )
    report(step=step, bits=training.bits(), digest=digest, why=memory.why_not(), taken=True)
    for _ in _train(training, memory, step, LAST):
        pass
    memory.close()
    distributed.destroy_process_group()


def main() -> None:
    """Play one role."""
    # As in a script that builds its model before anything else: in each role the generators stand where that leaves them.
    kept_objects()
    _ended_groups.watch_exit()
    role, rank_text, world_text, directory_text, *cases_given = sys.argv[1:]
    rank, world, directory, cases = int(rank_text), int(world_text), Path(directory_text), set(cases_given)
    warm_up()
    torch.set_num_threads(1)
    if "pieces" in cases:
        live_transfer._PIECE_BYTES = 100
    memory = None
    if role != "fresh":
        memory = _first_entry(role, rank, world, directory, cases)
        if memory is None:
            return
    _second_entry(memory, rank, world, directory, cases)


def _live_session(rank: int, world: int) -> FakeSession:
    session = FakeSession(rank, world, 2)
    session.plan_is_live = True
    return session


if __name__ == "__main__":
    main()
