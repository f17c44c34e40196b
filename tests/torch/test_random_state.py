"""Generators of CUDA devices go back to where their rank works now. The arithmetic only: no test here needs a device."""

from __future__ import annotations

import pytest

from recovery.torch.random_state import devices_for


@pytest.mark.parametrize(
    ("saved", "saved_current", "count", "current", "expected"),
    [
        # The same devices, the same one current.
        (4, 2, 4, 2, {0: 0, 1: 1, 2: 2, 3: 3}),
        # The rank works on another one now: the two change places.
        (4, 2, 4, 0, {0: 2, 1: 1, 2: 0, 3: 3}),
        # It saw all of its host's and is shown its own only.
        (4, 3, 1, 0, {3: 0}),
        # It was shown its own only and sees all.
        (1, 0, 4, 3, {0: 3}),
        # Two are left.
        (4, 1, 2, 1, {0: 0, 1: 1}),
    ],
)
def test_the_current_devices_generator_goes_to_the_current_device(
    saved: int, saved_current: int, count: int, current: int, expected: dict[int, int]
) -> None:
    assert devices_for(saved, saved_current, count, current) == expected
