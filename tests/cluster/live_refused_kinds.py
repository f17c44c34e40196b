"""Kinds of training that no survivor's memory can go on with: what can be neither derived nor given, or changes in the middle of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

import recovery
import recovery.torch as rt
from tests.cluster.live_kinds import Kind, Moment, Stream, loader_of, net, plain, sgd


class StreamWithState(Stream):
    """One that says itself where it is."""

    def __init__(self, session: recovery.Session) -> None:
        super().__init__(session)
        self._order: list[int] = []
        self._taken = 0

    @override
    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        if self._taken == len(self._order):
            self._order, self._taken = self.new_order(), 0
        while self._taken < len(self._order):
            self._taken += 1
            yield self.row(self._order[self._taken - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self._order), "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order, self._taken = list(state["order"]), state["taken"]


class OwnStateSGD(torch.optim.SGD):
    """It saves its state in a way of its own."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict()


class ExtraState(nn.Linear):
    """It saves more than tensors."""

    @override
    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": 1}

    @override
    def set_extra_state(self, state: dict[str, Any]) -> None:
        del state


def closure(session: recovery.Session, moment: Moment) -> Kind:
    """LBFGS runs several passes in one step, and keeps lists."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3, history_size=4)

    def step(number: int, rows: torch.Tensor) -> None:
        del number
        moment(rows.sum())

        def loss_again() -> Any:
            optimizer.zero_grad()
            loss = model(rows).square().mean()
            loss.backward()
            return loss

        optimizer.step(loss_again)  # type: ignore[no-untyped-call]  # torch gives it no types

    return Kind({"model": model, "optimizer": optimizer, "loader": loader_of(session)}, step)


def per_rank(session: recovery.Session, moment: Moment) -> Kind:
    model = DistributedDataParallel(net())
    return plain(session, moment, model, [sgd(model)], own=nn.Linear(2, 2), per_rank=["own"])


def extra_state(session: recovery.Session, moment: Moment) -> Kind:
    model = DistributedDataParallel(net(ExtraState(16, 16)))
    return plain(session, moment, model, [sgd(model)])


def data_with_state(session: recovery.Session, moment: Moment) -> Kind:
    model = DistributedDataParallel(net())
    loader = rt.ResumableLoader(StreamWithState(session), batch_size=4, session=session)
    return plain(session, moment, model, [sgd(model)], loader=loader)


def own_optimizer(session: recovery.Session, moment: Moment) -> Kind:
    model = DistributedDataParallel(net())
    return plain(session, moment, model, [OwnStateSGD(model.parameters(), lr=0.01)])


def unreduced(session: recovery.Session, moment: Moment) -> Kind:
    """Four steps for each of the optimizer's; the gradients are added over the ranks in the last of them alone."""
    model = DistributedDataParallel(net())
    optimizer = sgd(model)

    def step(number: int, rows: torch.Tensor) -> None:
        is_last = number % 4 == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            loss = model(rows).square().mean() / 4
            moment(loss)
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

    return Kind({"model": model, "optimizer": optimizer, "loader": loader_of(session)}, step)


REFUSED: dict[str, Callable[[recovery.Session, Moment], Kind]] = {
    one.__name__: one for one in (closure, per_rank, extra_state, data_with_state, own_optimizer, unreduced)
}
