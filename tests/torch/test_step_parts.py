"""The parts of a step that only torch knows are told to the clock of phases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import distributed
from torch._C._distributed_c10d import HashStore

from recovery.core.phases import Phase
from recovery.torch import TrainState
from recovery.torch.step_parts import StepParts
from recovery.training import current
from recovery.worker.phase_clock import PhaseClock

parts = StepParts()


@pytest.fixture
def session() -> Iterator[Any]:
    """In a generation behind its first step, in the part that computes."""
    entry: Any = SimpleNamespace(phases=PhaseClock().begin(loads=True), state=None)
    current.enter(entry)
    parts.enter(entry)
    entry.phases.enter_loop()
    entry.phases.stepped()
    entry.phases.enter(Phase.COMPUTE)
    yield entry
    current.enter(None)


def test_what_follows_an_optimizers_step_is_the_scripts_own(session: Any) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    seen = [session.phases.phase]
    session.phases.enter(Phase.SAVE)
    optimizer.step()

    assert [*seen, session.phases.phase] == [Phase.OWN_CODE, Phase.SAVE], "a step in a callback ends nothing"


def test_compilation_is_a_phase_without_a_limit(session: Any) -> None:
    seen: list[Phase] = []

    def compiled(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        seen.append(session.phases.phase)
        return graph.forward

    torch.compile(lambda value: value + 1, backend=compiled)(torch.ones(1))

    assert seen == [Phase.COMPILE]
    assert session.phases.phase is Phase.COMPUTE


def test_a_compiler_that_came_behind_the_entry_is_seen_at_the_next_step(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, late = sys.modules["torch._dynamo"], StepParts()
    heard: list[Any] = []
    callbacks = SimpleNamespace(on_compile_start=heard.append, on_compile_end=heard.append)
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    late.enter(session)
    late._behind_step()
    assert heard == []

    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(callback=callbacks))
    for _ in range(2):
        late._behind_step()
    assert len(heard) == 2
    assert came is not sys.modules["torch._dynamo"]


def test_a_model_in_evaluation_mode_is_evaluated(session: Any) -> None:
    session.state = TrainState(model=[torch.nn.Linear(2, 1), torch.nn.Dropout(0.1)])
    session.phases.computed()
    session.phases.enter(Phase.COMPUTE)
    assert session.phases.report().phase is Phase.COMPUTE

    inner = torch.nn.Linear(2, 1)
    session.state = TrainState(model=torch.compile(inner, backend="eager"))
    assert session.phases.report().phase is Phase.COMPUTE
    inner.eval()
    assert session.phases.report().phase is Phase.EVALUATION


def test_outside_an_entry_nothing_is_told(session: Any) -> None:
    current.enter(None)
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
    torch.compile(lambda value: value + 2, backend="eager")(torch.ones(1))

    assert session.phases.phase is Phase.COMPUTE


def test_the_collectives_that_a_rank_has_begun_are_counted(session: Any) -> None:
    assert session.phases.report().collectives == 0
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        before = session.phases.report().collectives
        for _ in range(3):
            distributed.all_reduce(torch.ones(1))
        assert session.phases.report().collectives == before + 3
    finally:
        distributed.destroy_process_group()


def test_a_rank_has_its_gradients_before_the_others_are_waited_for(session: Any) -> None:
    """Behind the entry's first step the parameter is watched whose gradient comes last; of an entry that is over no hook is left."""
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    first.weight.requires_grad_(False)
    model = torch.nn.Sequential(first, second)
    session.state = TrainState(model=model)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    told: list[str] = []
    session.phases.times.has_gradients = lambda: told.append("gradients")
    first.bias.register_post_accumulate_grad_hook(lambda _: told.append("first"))  # type: ignore[no-untyped-call]  # torch ships it without types
    second.weight.register_post_accumulate_grad_hook(lambda _: told.append("second"))  # type: ignore[no-untyped-call]  # torch ships it without types

    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert told == ["second", "first", "second", "first", "gradients"]

    parts.enter(session)
    model(torch.ones(1, 2)).sum().backward()
    assert told[5:] == ["second", "first"]


def test_a_model_that_is_compiled_is_compiled_once(session: Any) -> None:
    inner, compiled = torch.nn.Linear(2, 1), list[int]()

    def compiles(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        compiled.append(1)
        return graph.forward

    model = torch.compile(inner, backend=compiles)
    session.state = TrainState(model=model)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert compiled == [1]
