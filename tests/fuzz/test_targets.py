"""Every target with the same few hundred inputs at each run; with others, and for longer: `python -m tests.fuzz --seconds 60`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from recovery.errors import RecoveryError
from tests.fuzz.blind import fuzz, inputs
from tests.fuzz.targets import TARGETS

INPUTS = 200
FEWER = {"material": 30}
"""Each opens a key file, and the way from a password to its key is slow on purpose."""


@pytest.mark.parametrize("name", TARGETS)
def test_arbitrary_bytes_raise_nothing_but_our_own_error(name: str, tmp_path: Path) -> None:
    target, size = TARGETS[name], FEWER.get(name, INPUTS)
    count, found = fuzz(target.taker(tmp_path), islice(inputs(target.seeds(), seed=1), size))

    assert found is None, f"{found.error!r} of {found.data!r}"
    assert count == size


@pytest.mark.parametrize("name", TARGETS)
def test_most_seeds_are_right(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    take = target.make(tmp_path)
    right = 0
    for seed in target.seeds():
        try:
            take(seed)
            right += 1
        except RecoveryError:
            continue
    assert right * 2 >= len(target.seeds()), "the bytes to begin from are refused before they are read far"


def test_an_exception_behind_a_few_bytes_is_found() -> None:
    def take(data: bytes) -> None:
        if data[2:3] == b"\xff":
            raise KeyError("a bug")

    count, found = fuzz(take, islice(inputs([b"abcdef"], seed=1), 10_000))

    assert found is not None, count
    assert isinstance(found.error, KeyError)
    assert found.data[2:3] == b"\xff"
