"""Generators of CUDA devices go back to where their rank works now. The arithmetic only: no test here needs a device."""

from __future__ import annotations

import pytest
import torch

from recovery.torch.random_state import capture_random_state, devices_for, restore_random_state


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="a rank that goes on without devices")
def test_a_rank_that_goes_on_without_devices_takes_the_other_generators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="recovery.torch")
    state = {**capture_random_state(), "cuda": [torch.zeros(16, dtype=torch.uint8)], "cuda_current": 0}
    drawn = torch.rand(3)
    restore_random_state(state)
    assert torch.equal(torch.rand(3), drawn)
    assert (
        "event=random_state_not_restored devices=0 there were 1 CUDA devices, and here are 0" in caplog.text
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="another test may have woken the GPU")
def test_taking_the_state_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would make every child of this process useless for the device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("the driver was asked"))
    state = capture_random_state()
    restore_random_state(state)
