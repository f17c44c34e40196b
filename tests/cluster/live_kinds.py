"""The kinds of training that live_kinds_job.py knows: what people put into a training state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import swa_utils
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.data import Dataset, IterableDataset
from typing_extensions import override

import recovery
import recovery.torch as rt

SAMPLES = 11 * 4
"""Of each rank: batches of 4."""
STEPS = 22
"""Of two epochs."""

Moment = Callable[[torch.Tensor], None]
"""Called with the loss before each step's (first) backward pass."""


@dataclass
class Kind:
    """One training."""

    parts: dict[str, Any]
    """What is given to TrainState."""
    step: Callable[[int, torch.Tensor], None]
    """Given the step's number and its rows: float32 [4, 8]."""
    callbacks: Sequence[recovery.Callback] = ()
    """Of its own."""


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """Row i, with noise, and its number."""

    def __init__(self, world_size: int, seed: int = 1) -> None:
        self._rows = torch.randn(SAMPLES * world_size, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self._rows)

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._rows[index] + 0.01 * torch.randn(8), index


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """The same as a stream that each rank shuffles for itself."""

    def __init__(self, session: recovery.Session) -> None:
        self._rank, self._rows = session.rank, Rows(session.world_size)

    def new_order(self) -> list[int]:
        return list(torch.randperm(SAMPLES).tolist())

    def row(self, place: int) -> tuple[torch.Tensor, int]:
        return self._rows[self._rank * SAMPLES + place]

    @override
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for place in self.new_order():
            yield self.row(place)


def net(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), *more, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))


def loader_of(session: recovery.Session) -> rt.ResumableLoader:
    return rt.ResumableLoader(Rows(session.world_size), batch_size=4, session=session)


def plain(
    session: recovery.Session, moment: Moment, model: nn.Module, optimizers: list[Any], **more: Any
) -> Kind:
    """A step as in most trainings; it calls `behind(step)` behind the optimizers."""
    behind = more.pop("behind", lambda step, loss: None)
    gradients_live = more.pop("clears_first", False)

    def step(number: int, rows: torch.Tensor) -> None:
        for optimizer in optimizers if gradients_live else []:
            optimizer.zero_grad()
        loss = model(rows).square().mean()
        moment(loss)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        behind(number, loss)
        for optimizer in [] if gradients_live else optimizers:
            optimizer.zero_grad()

    parts = {"model": model, "optimizer": optimizers, "loader": loader_of(session), **more}
    return Kind(parts, step)


def sgd(part: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(part.parameters(), lr=0.02, momentum=0.9)


def optimizers(session: recovery.Session, moment: Moment) -> Kind:
    """One for each of several layers, with what each keeps: two moments, maxima, averages, counts, a list of directions."""
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9)))
    makers: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda it: torch.optim.AdamW(
            [{"params": [it.weight], "weight_decay": 0.1}, {"params": [it.bias], "lr": 0.003}], amsgrad=True
        ),
        lambda it: torch.optim.Adagrad(it.parameters(), lr=0.01),
        lambda it: torch.optim.RMSprop(it.parameters(), lr=0.001, momentum=0.9, centered=True),
        lambda it: torch.optim.NAdam(it.parameters()),
        lambda it: torch.optim.Rprop(it.parameters(), lr=0.001),
        lambda it: torch.optim.ASGD(it.parameters(), lr=0.001, t0=5),
        lambda it: torch.optim.Adam(it.parameters(), lr=torch.tensor(0.001)),
        lambda it: torch.optim.Adadelta(it.parameters()),
        lambda it: torch.optim.SGD(it.parameters(), lr=0.01, momentum=0.9, nesterov=True, maximize=False),
    ]
    made = [make(layer) for make, layer in zip(makers, layers, strict=True)]
    return plain(session, moment, DistributedDataParallel(layers), made)


def accumulation(session: recovery.Session, moment: Moment) -> Kind:
    """Four steps for each of the optimizer's; the gradients are added over the ranks in each."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.9)

    def step(number: int, rows: torch.Tensor) -> None:
        loss = model(rows).square().mean() / 4
        moment(loss)
        loss.backward()
        if number % 4 == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=number % 8 == 0)

    parts = {"model": model, "optimizer": optimizer, "lr_scheduler": schedule, "loader": loader_of(session)}
    return Kind(parts, step)


def cleared_first(session: recovery.Session, moment: Moment) -> Kind:
    """The other habit: zero_grad() at the begin, so that gradients are there at each boundary."""
    model = DistributedDataParallel(net())
    return plain(session, moment, model, [torch.optim.Adam(model.parameters())], clears_first=True)


def one_cycle(session: recovery.Session, moment: Moment) -> Kind:
    """It moves the rate and the momentum at every step."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)
    return plain(
        session, moment, model, [optimizer], lr_scheduler=schedule, behind=lambda *_: schedule.step()
    )


def plateau(session: recovery.Session, moment: Moment) -> Kind:
    """It decides by the losses; beside it a chain of others, and one with a function."""
    model = DistributedDataParallel(net())
    adam = torch.optim.Adam(model.module[0].parameters(), lr=0.01)
    momentum = sgd(model.module[-1])
    by_loss = ReduceLROnPlateau(adam, patience=1, factor=0.7, threshold=0.2)
    chain = SequentialLR(
        momentum, [LinearLR(momentum, total_iters=6), CosineAnnealingLR(momentum, T_max=9)], milestones=[6]
    )
    by_function = LambdaLR(adam, lambda step: 1.0)

    def behind(step: int, loss: torch.Tensor) -> None:
        del step
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        by_loss.step(float(mean))
        chain.step()

    return plain(
        session, moment, model, [adam, momentum], lr_scheduler=[by_loss, chain, by_function], behind=behind
    )


def scaler(session: recovery.Session, moment: Moment) -> Kind:
    """Steps that are left out since a gradient overflowed, and a scale that grows."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def step(number: int, rows: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(rows).float().square().mean()
        moment(loss)
        scale.scale(loss * (float("inf") if number % 5 == 0 else 1.0)).backward()
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()

    return Kind({"model": model, "optimizer": optimizer, "loader": loader_of(session), "scaler": scale}, step)


def averages(session: recovery.Session, moment: Moment) -> Kind:
    """Averages of a model with batch statistics: exponential with and without them, and the plain mean behind step 5."""
    bare = net(nn.BatchNorm1d(16))
    model = DistributedDataParallel(bare)
    optimizer = sgd(model)
    average_of = swa_utils.get_ema_multi_avg_fn(0.9)  # type: ignore[no-untyped-call]  # torch gives it no types
    kept = [
        swa_utils.AveragedModel(bare, multi_avg_fn=average_of, use_buffers=True),
        swa_utils.AveragedModel(bare, multi_avg_fn=average_of, use_buffers=False),
        swa_utils.AveragedModel(bare),
    ]
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=8)

    def behind(step: int, loss: torch.Tensor) -> None:
        del loss
        schedule.step()
        for number, average in enumerate(kept):
            if number < 2 or step > 5:
                average.update_parameters(bare)

    return plain(session, moment, model, [optimizer], lr_scheduler=schedule, averages=kept, behind=behind)


def statistics(session: recovery.Session, moment: Moment) -> Kind:
    """Buffers that training changes in its forward passes: of batches, and of a spectral norm."""
    bare = net(
        nn.BatchNorm1d(16),
        nn.BatchNorm1d(16, momentum=None),
        nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)),
    )
    model = DistributedDataParallel(bare)
    return plain(session, moment, model, [sgd(model)])


def two_models(session: recovery.Session, moment: Moment) -> Kind:
    """Each has an optimizer; one is stepped twice as often, and a frozen layer never."""
    first, second = net(nn.BatchNorm1d(16)), net()
    first[0].requires_grad_(False)
    models = [DistributedDataParallel(first), DistributedDataParallel(second)]
    stepped = [sgd(models[0]), torch.optim.Adam(models[1].parameters())]

    def step(number: int, rows: torch.Tensor) -> None:
        loss = models[1](rows).square().mean()
        moment(loss)
        loss.backward()
        stepped[1].step()
        stepped[1].zero_grad()
        if number % 2 == 0:
            (models[0](rows) - models[1](rows).detach()).square().mean().backward()
            stepped[0].step()
            stepped[0].zero_grad()

    return Kind({"model": models, "optimizer": stepped, "loader": loader_of(session)}, step)


def compiled(session: recovery.Session, moment: Moment) -> Kind:
    """In DistributedDataParallel: what is compiled has names of its own."""
    model = DistributedDataParallel(torch.compile(net(nn.BatchNorm1d(16)), backend="aot_eager"))
    return plain(session, moment, model, [torch.optim.Adam(model.parameters())])


def compiled_around(session: recovery.Session, moment: Moment) -> Kind:
    """Around DistributedDataParallel."""
    wrapped = DistributedDataParallel(net(nn.BatchNorm1d(16)))
    return plain(session, moment, torch.compile(wrapped, backend="eager"), [sgd(wrapped)])  # type: ignore[arg-type]  # it is a module


def two_loaders(session: recovery.Session, moment: Moment) -> Kind:
    """A second one of another length, whose epochs end in the middle of the first one's: a stream that each rank shuffles."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    second = rt.ResumableLoader(Stream(session), batch_size=6, session=session, seed=9)
    more = iter(second)

    def step(number: int, rows: torch.Tensor) -> None:
        nonlocal more
        del number
        try:
            others, _ = next(more)
        except StopIteration:
            more = iter(second)
            others, _ = next(more)
        loss = model(torch.cat([rows, others])).square().mean()
        moment(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Kind(
        {"model": model, "optimizer": optimizer, "loader": loader_of(session), "second": second}, step
    )


def kept(session: recovery.Session, moment: Moment) -> Kind:
    """The session keeps the model, its optimizer and an average of it."""
    bare = session.keep(lambda: net(nn.BatchNorm1d(16)), "net")
    optimizer = session.keep(lambda: torch.optim.AdamW(bare.parameters(), amsgrad=True), "optimizer")
    average = session.keep(lambda: swa_utils.AveragedModel(bare, use_buffers=True), "average")
    schedule = OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS)

    def behind(step: int, loss: torch.Tensor) -> None:
        del step, loss
        average.update_parameters(bare)
        schedule.step()

    model = DistributedDataParallel(bare)
    return plain(session, moment, model, [optimizer], average=average, lr_scheduler=schedule, behind=behind)


class Fades(recovery.Callback):
    """It changes a buffer behind every third step."""

    def __init__(self, module: nn.BatchNorm1d) -> None:
        self._module = module

    @override
    def on_step_end(self, session: recovery.Session) -> None:
        if session.step % 3 == 0:
            assert self._module.running_mean is not None
            self._module.running_mean *= 0.5


def changed_by_a_callback(session: recovery.Session, moment: Moment) -> Kind:
    """What rank 0 has sent is not what it has when its callbacks have ended."""
    statistics = nn.BatchNorm1d(16)
    model = DistributedDataParallel(net(statistics))
    kind = plain(session, moment, model, [sgd(model)])
    kind.callbacks = [Fades(statistics)]
    return kind


LIVE: dict[str, Callable[[recovery.Session, Moment], Kind]] = {
    one.__name__: one
    for one in (
        *(optimizers, accumulation, cleared_first, one_cycle, plateau, scaler, averages, statistics),
        *(two_models, compiled, compiled_around, two_loaders, kept, changed_by_a_callback),
    )
}
