"""Generators of the program's own making are parts of a state as they are; those that are none are named before the first step."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch import TrainState, own_generators
from recovery.torch.kept_generators import KeptGenerator

_MADE: dict[str, Callable[[int], Any]] = {
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "Python": random.Random,
    "PCG64": numpy.random.default_rng,
    "MT19937": lambda seed: numpy.random.Generator(numpy.random.MT19937(seed)),
    "Philox": lambda seed: numpy.random.Generator(numpy.random.Philox(seed)),
    "SFC64": lambda seed: numpy.random.Generator(numpy.random.SFC64(seed)),
    "RandomState": numpy.random.RandomState,
    "bits": numpy.random.PCG64DXSM,
}


def drawn(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.random(), generator.gauss(0, 1)]
    if isinstance(generator, numpy.random.BitGenerator):
        return generator.random_raw(3).tolist()
    return [*generator.random(3), *generator.normal(size=3)]


@pytest.mark.parametrize("kind", _MADE)
def test_a_generator_is_a_part_as_it_is(tmp_path: Path, kind: str) -> None:
    saved, here = _MADE[kind](1), _MADE[kind](2)
    drawn(saved)
    model = nn.Linear(1, 1)
    with (tmp_path / "state").open("wb") as stream:
        TrainState(model=model, draw=[saved], scaler=torch.amp.GradScaler("cpu")).write(stream)
    expected = [drawn(saved), drawn(saved)]
    TrainState(model=model, draw=here, scaler=torch.amp.GradScaler("cpu")).read(tmp_path / "state")
    assert [drawn(here), drawn(here)] == expected


def test_several_by_name_are_a_part_in_whatever_order_they_are_made(tmp_path: Path) -> None:
    saved = {"crop": random.Random(1), "flip": numpy.random.default_rng(1)}
    here: dict[str, Any] = {"flip": numpy.random.default_rng(2), "crop": random.Random(2)}
    model = nn.Linear(1, 1)
    with (tmp_path / "state").open("wb") as stream:
        TrainState(model=model, draws=saved).write(stream)
    TrainState(model=model, draws=here).read(tmp_path / "state")
    assert {name: drawn(one) for name, one in here.items()} == {name: drawn(saved[name]) for name in here}


def test_another_kind_is_refused() -> None:
    state = KeptGenerator(numpy.random.default_rng(1)).state_dict()
    with pytest.raises(CheckpointStateError, match=r"it was a .* of PCG64 and is a .* of SFC64"):
        KeptGenerator(numpy.random.Generator(numpy.random.SFC64(1))).load_state_dict(state)


def test_it_can_be_given_in_live_rollback() -> None:
    state = TrainState(model=nn.Linear(1, 1), draw=[made(1) for made in _MADE.values()])
    assert state.why_not_live() == ()


# --- those that are no parts -------------------------------------------------------------------------------------------

of_the_module = random.Random(1)


def uses(*generators: Any) -> None:
    """What a function names is what its code may draw from."""


@pytest.fixture(autouse=True)
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(own_generators, "_said", set())
    caplog.set_level(logging.INFO, "recovery.torch")
    return lambda: [text for text in caplog.messages if "event=own_generator" in text]


class Noisy(nn.Module):
    def __init__(self, rng: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        vars(self.inner[1])["_draws"] = {"from": rng}


class Saving(Noisy):
    @override
    def get_extra_state(self) -> Any:
        return {}

    @override
    def set_extra_state(self, state: Any) -> None:
        return


def test_one_that_a_module_keeps_is_named(said: Callable[[], list[str]]) -> None:
    state = TrainState(model=[nn.Linear(1, 1), Noisy(torch.Generator())])
    state.begin()
    state.begin()
    (line,) = said()
    expected = "model[1] keeps a random generator of its own: .inner.1._draws['from'] (torch._C.Generator)."
    assert expected in line


def test_one_that_is_a_part_or_in_an_extra_state_is_not(said: Callable[[], list[str]]) -> None:
    rng = random.Random(1)
    kept = Saving(nn.Identity())
    vars(kept)["rng"] = random.Random(1)
    TrainState(model=[Noisy(rng), kept], noise=rng).begin()
    assert not said()


class Inside(Sampler[int]):
    """The order of a sampler inside it."""

    def __init__(self, inside: RandomSampler) -> None:
        self._inside = inside

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self._inside)


def test_one_of_a_sampler_inside_another_of_a_loader_is_not(said: Callable[[], list[str]]) -> None:
    def train() -> None:
        rng = torch.Generator()
        loader: DataLoader[Any] = DataLoader([1, 2], sampler=Inside(RandomSampler([1, 2], generator=rng)))  # type: ignore[arg-type]
        TrainState(model=nn.Linear(1, 1)).begin()
        uses(rng, loader)

    train()
    assert not said()


def test_those_of_the_function_that_trains_are_named(said: Callable[[], list[str]]) -> None:
    def train() -> None:
        rng, several = numpy.random.default_rng(1), {"crop": [torch.Generator()]}
        loader: DataLoader[Any] = DataLoader([1, 2], shuffle=True, generator=torch.Generator())  # type: ignore[arg-type]
        of_loader = loader.generator
        part, of_the_program = random.Random(1), torch.default_generator
        TrainState(model=nn.Linear(1, 1), part=part).begin()
        uses(rng, several, of_loader, of_the_program, of_the_module)

    def enter() -> None:
        in_a_closure = random.Random(3)

        def train_with() -> None:
            TrainState(model=nn.Linear(1, 1)).begin()
            uses(in_a_closure)

        train_with()

    train()
    (line,) = said()
    kinds = "several (torch._C.Generator)", "rng (numpy.random._generator.Generator)"
    assert (
        f"train() keeps a random generator of its own: of_the_module (random.Random), {kinds[1]}, {kinds[0]}."
        in line
    )
    enter()
    assert "train_with() keeps a random generator of its own: in_a_closure" in said()[1]


def test_a_function_that_was_looked_into_can_let_go() -> None:
    class Large:
        pass

    def train() -> weakref.ref[Large]:
        large = Large()
        of_large = weakref.ref(large)
        TrainState(model=nn.Linear(1, 1)).begin()
        del large
        gc.collect()
        assert of_large() is None
        return of_large

    train()
