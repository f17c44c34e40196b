"""Random generators as a function of (seed, rank, step): whoever knows the three has the numbers, whatever was drawn before."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy
import pytest
import torch

from recovery.torch.keyed import base_seed, key_generators
from recovery.torch.random_state import capture_random_state, restore_random_state


def _draw() -> list[float]:
    normal = [random.gauss(0, 1), float(numpy.random.standard_normal()), torch.randn(()).item()]
    even = [random.random(), float(numpy.random.random()), torch.rand((), dtype=torch.float64).item()]
    return normal + even


def _keyed(seed: int, rank: int, step: int) -> list[float]:
    key_generators(seed, rank, step)
    return _draw()


def test_the_same_key_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    first = _keyed(1, 2, 3)
    # Half a pair of normal numbers is kept back by each of the three generators.
    random.gauss(0, 1)
    numpy.random.standard_normal()
    torch.randn(3)
    assert _keyed(1, 2, 3) == first


def test_the_same_key_gives_the_same_numbers_in_another_process() -> None:
    program = "import json; from tests.torch import test_keyed as t; print(json.dumps(t._keyed(2**64 - 5, 7, 10**12)))"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(told.stdout) == _keyed(2**64 - 5, 7, 10**12)


def test_no_two_keys_and_no_two_generators_share_a_stream() -> None:
    keys = [(seed, rank, step) for seed in (0, 1, 12) for rank in (0, 1, 23) for step in (0, 1, 3, 231)]
    numbers = [number for key in keys for number in _keyed(*key)[3:]]
    assert len(set(numbers)) == 3 * len(keys)


def test_numbers_of_neighbouring_keys_look_drawn() -> None:
    """The first number of each of many streams: mean, spread and the correlation of neighbours, within five deviations."""
    columns = torch.tensor([_keyed(5, rank, step)[3:] for rank in range(4) for step in range(250)]).double().T
    for column in columns:
        assert abs(column.mean() - 1 / 2) < 5 * (1 / 12 / 1000) ** 0.5
        assert abs(column.var() - 1 / 12) < 0.015
        assert abs(torch.corrcoef(torch.stack([column[1:], column[:-1]]))[0, 1]) < 5 / 1000**0.5
    assert (torch.corrcoef(columns) - torch.eye(3)).abs().max() < 5 / 1000**0.5


def test_ranks_that_must_choose_alike_are_keyed_with_one_number() -> None:
    """A size for the whole batch, a layer left out: where ranks choose differently their collectives no longer fit together."""

    def choices(numbers: tuple[int, int]) -> list[list[int]]:
        made: list[list[int]] = []
        for number in numbers:
            made.append([])
            for step in range(20):
                key_generators(1, number, step)
                made[-1].append(random.randrange(3))
        return made

    alike, own = choices((0, 0)), choices((0, 1))
    assert alike[0] == alike[1]
    assert own[0] != own[1]


def test_the_base_seed_is_what_the_program_has_seeded_with() -> None:
    torch.manual_seed(1234)
    torch.rand(10)
    assert base_seed() == 1234


def test_a_key_takes_the_place_of_the_seed_so_the_base_seed_is_asked_for_once_at_each_entry() -> None:
    torch.manual_seed(1234)
    key_generators(base_seed(), 0, 0)
    assert base_seed() != 1234


def test_generators_put_back_before_an_entry_bring_the_base_seed_back() -> None:
    """training/run.py puts them back as they stood before the first entry: every entry finds the same base seed."""
    torch.manual_seed(1234)
    before = capture_random_state()
    for step in range(3):
        key_generators(base_seed(), 0, step)
    restore_random_state(before)
    assert base_seed() == 1234


def test_a_seed_from_a_state_of_another_process_comes_with_that_state() -> None:
    """A checkpoint's generators bring the seed of the process that saved them: the base seed is taken before a checkpoint is loaded."""
    torch.manual_seed(77)
    elsewhere = capture_random_state()
    torch.manual_seed(1234)
    restore_random_state(elsewhere)
    assert base_seed() == 77


def test_devices_in_use_are_keyed_with_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    key_generators(1, 0, 5)
    assert not seeds, "no device is woken"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for step in (5, 6, 5):
        key_generators(1, 0, step)
    assert seeds[0] == seeds[2] != seeds[1]
