"""A script for torchrun with three lines of ours, of the forms that are hard to go on with; what it does otherwise stands in its environment."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler, default_collate
from typing_extensions import override

import recovery
import recovery.torch as rt
from tests.soak.moments import hold, moment
from tests.trainers.tiny_training import Net, Samples, enter, finish, log, note, sample

EPOCHS, COUNT, ROWS = int(os.environ.get("JOB_EPOCHS", "5")), 144, 4
STEPS = 14 * EPOCHS
DATA = os.environ.get("JOB_DATA", "plain")
FEATURES = frozenset(os.environ.get("JOB_FEATURES", "").split())
EVALUATED_EVERY = 9
CHANGED_EVERY = 11
"""Steps between two changes of what is trained: in the middle of a pass, and of two saves."""


class Told(Samples):
    """Of the begin of each batch, and more or less of it."""

    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % ROWS == 0:
            moment("load")
        return super().__getitem__(index)


class Aged(Told):
    """Its samples change from pass to pass."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @override
    def __getitem__(self, index: int) -> dict[str, Any]:
        found = super().__getitem__(index)
        return {**found, "rows": found["rows"] * (1 + 0.1 * self.epoch)}


class Shuffled(IterableDataset[dict[str, Any]]):
    """A stream that has a buffer to shuffle in, in an order of its own for each pass."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @override
    def __iter__(self) -> Iterator[dict[str, Any]]:
        draw, buffer = random.Random(self.epoch), list[int]()
        for index in range(dist.get_rank(), COUNT, dist.get_world_size()):
            buffer.append(index)
            if len(buffer) > 20:
                moment("load")
                yield sample(buffer.pop(draw.randrange(len(buffer))))
        draw.shuffle(buffer)
        yield from map(sample, buffer)


class Weights:
    """Of the samples; training changes them."""

    def __init__(self) -> None:
        self.of = torch.ones(COUNT, dtype=torch.double)

    def state_dict(self) -> dict[str, Any]:
        moment("save")
        return {"of": self.of.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.of.copy_(state["of"])


def get_batch(step: int) -> Any:
    moment("load")
    return default_collate([sample(index) for index in torch.randint(COUNT, (ROWS,)).tolist()])


def endless(rank: int) -> Iterator[Any]:
    draw = random.Random(rank)
    while True:
        moment("load")
        yield default_collate([sample(draw.randrange(COUNT)) for _ in range(ROWS)])


def batches_of(weights: Weights) -> Any:
    """What gives them, by JOB_DATA."""
    if DATA == "function":
        return get_batch
    if DATA == "iterator":
        return endless(dist.get_rank())
    if DATA == "stream":
        return DataLoader(Shuffled(), batch_size=ROWS)
    if DATA == "workers":
        return DataLoader(Aged(COUNT), batch_size=ROWS, shuffle=True, num_workers=1, persistent_workers=True)
    if DATA == "weights":
        sampler = WeightedRandomSampler(weights.of, COUNT)  # type: ignore[arg-type]  # a tensor is taken as well
        sampler.weights = weights.of
        return DataLoader(Told(COUNT), batch_size=ROWS, sampler=sampler)
    return DataLoader(Told(COUNT), batch_size=ROWS, shuffle=True)


def evaluate(session: recovery.Session, net: Net) -> None:
    net.eval()
    losses = []
    with torch.no_grad():
        for index in range(4):
            moment("evaluate")
            losses.append(net(**default_collate([sample(COUNT + index)]))["loss"].item())
    net.train()
    log(session, "evaluations", session.step + 1, losses)


def main() -> None:
    session = rt.join("gloo")
    enter(session)
    torch.manual_seed(70 + session.rank)
    net, weights = Net(), Weights()
    model = DistributedDataParallel(net, find_unused_parameters="freezes" in FEATURES)
    if "hook" in FEATURES:
        compressed = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
        model.register_comm_hook(compressed, powerSGD_hook.powerSGD_hook)
    first, rest = net.layers[0], [*net.layers[3].parameters()]
    trained = rest if "group" in FEATURES else [*net.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=0.05)
    extra: dict[str, Any] = {"best": float("inf"), "seen": 0}
    further: dict[str, Any] = {"weights": weights, "extra": extra}
    noise = torch.Generator().manual_seed(session.rank)
    if "generator" in FEATURES:
        further["noise"] = noise
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    further["lr_scheduler"] = schedule
    further |= {"max_steps": STEPS} if DATA in ("function", "iterator") else {"epochs": EPOCHS}
    for batch in rt.steps(batches_of(weights), model, optimizer, save_every=4, **further):
        step = session.step + 1
        if "freezes" in FEATURES and step % CHANGED_EVERY == 0:
            first.weight.requires_grad_(not first.weight.requires_grad)
        if "group" in FEATURES and step == 2 * CHANGED_EVERY:
            optimizer.add_param_group({"params": first.parameters(), "lr": 0.02})
        if "generator" in FEATURES:
            batch["rows"] += 0.01 * torch.randn(batch["rows"].shape, generator=noise)
        loss = model(**batch)["loss"] * (1 + 0.01 * extra["seen"])
        moment("compute")
        if not moment("backward"):
            loss.backward()
        if "accumulates" not in FEATURES or step % 2 == 0:
            optimizer.step()
            net.zero_grad()
        weights.of[step % COUNT] += 2.0
        extra.update(best=min(extra["best"], loss.item()), seen=extra["seen"] + len(batch["ids"]) % 3)
        if step % CHANGED_EVERY == 0:
            schedule.step(float(step % 4))
        if step % EVALUATED_EVERY == 0:
            evaluate(session, net)
        note(session, step, net)
        hold(session, step)
    finish(session, net, extra, optimizer.param_groups[0]["lr"])


if __name__ == "__main__":
    main()
