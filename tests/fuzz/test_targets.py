"""Every target for a moment, and that the loop finds what is planted; longer by hand: `python -m tests.fuzz --seconds 60`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.errors import RecoveryError
from tests.fuzz.blind import fuzz
from tests.fuzz.targets import TARGETS

SECONDS = float(os.environ.get("FUZZ_SECONDS", "1"))
"""`FUZZ_SECONDS=60 pytest tests/fuzz` makes it any length."""
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.mark.parametrize("name", TARGETS)
def test_arbitrary_bytes_raise_nothing_but_our_own_error(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    count, found = fuzz(target.taker(tmp_path), target.seeds(), seconds=SECONDS, seed=SEED)

    assert found is None, f"{found.error!r} of {found.data!r}"
    assert count > len(target.seeds())


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

    count, found = fuzz(take, [b"abcdef"], seconds=30, seed=1)

    assert found is not None, count
    assert isinstance(found.error, KeyError)
    assert found.data[2:3] == b"\xff"
    again, found_again = fuzz(take, [b"abcdef"], seconds=30, seed=1)
    assert found_again is not None
    assert (again, found_again.data) == (count, found.data), "a seed draws the same"
