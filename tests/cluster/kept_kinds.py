"""Kinds of training, as in live_kinds.py, whose session keeps DistributedDataParallel and what is compiled.

Each entry adds a line to `kept_<rank>.jsonl` when it begins: the process, and how many wrappers and pieces of compiled code it has made so far.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

import recovery
import recovery.torch as rt
from tests.cluster.live_kinds import Kind, Moment, loader_of, net, plain, sgd

_made = 0
_torchs_init: Any = DistributedDataParallel.__init__


def _count(*arguments: Any, **named: Any) -> None:
    global _made  # noqa: PLW0603 - of this process
    _made += 1
    _torchs_init(*arguments, **named)


def count_wrappers() -> None:
    """From now on, in this process: its own job's."""
    setattr(DistributedDataParallel, "__init__", _count)  # noqa: B010 - only counts


def compiled_so_far() -> int:
    """Pieces of code that torch.compile has made in this process, and what it has made again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["frames"]["ok"]) if dynamo else 0


class Counts(recovery.Callback):
    """What was made before each step."""

    @override
    def on_step_end(self, session: recovery.Session) -> None:
        line = {"pid": os.getpid(), "step": session.step, "made": _made, "compiled": compiled_so_far()}
        with Path(f"kept_{session.rank}.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")


def wrapped(bare: nn.Module, **more: Any) -> DistributedDataParallel:
    """In small buckets, so that the first is on its way while the rest of the backward pass is done."""
    return DistributedDataParallel(bare, bucket_cap_mb=0.0001, **more)


def trained(session: recovery.Session, moment: Moment, make: Callable[[], Any]) -> Kind:
    """The model is kept, and its optimizer."""
    model = session.keep(make, "model")
    optimizer = session.keep(lambda: sgd(model), "optimizer")
    kind = plain(session, moment, model, [optimizer])
    kind.callbacks = [Counts()]
    return kind


class Noted(nn.Module):
    """Notes what goes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: torch.Tensor | None = None

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen = rows
        return rows


def kept_wrapper(session: recovery.Session, moment: Moment) -> Kind:
    """A rank ends in the middle of a backward pass: the later layer has its gradient, and its bucket is on the way."""
    kind = trained(session, moment, lambda: wrapped(net(Noted(), nn.BatchNorm1d(16))))
    model, optimizer = kind.parts["model"], kind.parts["optimizer"][0]

    def step(number: int, rows: torch.Tensor) -> None:
        del number
        loss = model(rows).square().mean()
        model.module[1].seen.register_hook(lambda gradient: moment(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    kind.step = step
    return kind


class Parts(nn.Module):
    """A head for every second pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = net(), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

    @override
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        head = self.heads[0 if float(rows.sum()) > 0 else 1]
        return self.body(rows) + head(rows)  # type: ignore[no-any-return]  # as torch has it


def kept_unused(session: recovery.Session, moment: Moment) -> Kind:
    """With parameters that some passes leave out, others on each rank."""
    return trained(session, moment, lambda: wrapped(Parts(), find_unused_parameters=True))


def kept_views(session: recovery.Session, moment: Moment) -> Kind:
    """Gradients lie in the buckets."""
    return trained(session, moment, lambda: wrapped(net(), gradient_as_bucket_view=True))


def kept_micro_steps(session: recovery.Session, moment: Moment) -> Kind:
    """A rank ends while the others are in a pass whose gradients are not added over the ranks."""
    kind = trained(session, moment, lambda: wrapped(net(nn.BatchNorm1d(16))))
    model, optimizer = kind.parts["model"], kind.parts["optimizer"][0]

    def step(number: int, rows: torch.Tensor) -> None:
        del number
        with model.no_sync():
            model(rows[:2]).square().mean().backward()
            loss = model(rows[2:]).square().mean()
            moment(loss.detach())
            torch.distributed.barrier()
            loss.backward()
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    kind.step = step
    return kind


def kept_around(session: recovery.Session, moment: Moment) -> Kind:
    """Compiled around the wrapper."""
    return trained(session, moment, compiled_around)


def compiled_around() -> nn.Module:
    compiled: Any = torch.compile
    return compiled(DistributedDataParallel(net(nn.BatchNorm1d(16))), backend="aot_eager")  # type: ignore[no-any-return]  # as torch has it


def kept_inside(session: recovery.Session, moment: Moment) -> Kind:
    """Compiled inside the wrapper."""
    return trained(session, moment, compiled_inside)


def compiled_inside() -> DistributedDataParallel:
    compiled: Any = torch.compile
    return DistributedDataParallel(compiled(net(nn.BatchNorm1d(16)), backend="aot_eager"))


def kept_two(session: recovery.Session, moment: Moment) -> Kind:
    """Two in one container, each with its optimizer."""
    models = session.keep(lambda: {"models": [wrapped(net()), wrapped(net(nn.BatchNorm1d(16)))]}, "models")[
        "models"
    ]
    optimizers = session.keep(lambda: [sgd(model) for model in models], "optimizers")

    def step(number: int, rows: torch.Tensor) -> None:
        del number
        loss = models[1](rows).square().mean() + models[0](rows).square().mean()
        moment(loss)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return Kind({"model": models, "optimizer": optimizers, "loader": loader_of(session)}, step, [Counts()])


def kept_static(session: recovery.Session, moment: Moment) -> Kind:
    """A static graph cannot be kept."""
    return trained(session, moment, lambda: wrapped(net(), static_graph=True))


KEPT = {
    one.__name__: one
    for one in (
        kept_wrapper,
        kept_unused,
        kept_views,
        kept_micro_steps,
        kept_around,
        kept_inside,
        kept_two,
    )
}
"""No wrapper is built again in a rank that lives, and nothing that is kept is compiled again."""

COMPILED = {kept_around.__name__: compiled_around, kept_inside.__name__: compiled_inside}
"""What makes the model of those of KEPT that are compiled."""


def do_a_pass(kind: str) -> None:
    """Compile what a process of this kind does in a step, before it is in the job's world."""
    with rt.world_of_one():
        model = COMPILED[kind]()
        optimizer = sgd(model)
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    Path(f"ahead_{os.getpid()}").write_text(str(compiled_so_far()))


MADE_ANEW = {kept_static.__name__: kept_static}
"""It cannot be kept, and is built again by all ranks."""
