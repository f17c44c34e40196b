"""A fingerprint changes with every bit of a state, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recovery.torch.fingerprint import joined, of_parts


def of(tree: Any) -> str:
    return of_parts({"part": tree})["part"]


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("length", [1, 3, 7, 8, 33])
def test_one_flipped_bit_anywhere_is_seen(dtype: torch.dtype, length: int) -> None:
    tensor = torch.arange(1, length + 1).to(dtype)
    content = tensor.clone().view(torch.uint8)
    before = of({"w": tensor})
    for place in range(content.numel()):
        changed = content.clone()
        changed[place] ^= 1 << (place % 8)
        assert of({"w": changed.view(dtype)}) != before, place


def test_how_a_tensor_lies_in_memory_changes_nothing() -> None:
    tensor = torch.randn(6, 5)
    behind = torch.cat([torch.zeros(1), tensor.reshape(-1)])[1:].reshape(6, 5)
    assert behind.storage_offset() % 2
    assert of([tensor]) == of([behind]) == of([tensor.t().contiguous().t()])


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(4), "lr": 0.2},
        {"b": torch.ones(4), "lr": 0.1},
        {"a": torch.ones(2, 2), "lr": 0.1},
        {"a": torch.ones(4, dtype=torch.float64), "lr": 0.1},
        {"a": torch.ones(4)},
    ],
    ids=["number", "name", "shape", "dtype", "less"],
)
def test_whatever_else_differs_is_seen(other: dict[str, Any]) -> None:
    assert of(other) != of({"a": torch.ones(4), "lr": 0.1})


def test_the_parts_are_told_apart() -> None:
    assert of_parts({"x": [1], "y": [2]}) != of_parts({"x": [2], "y": [1]})
    assert joined({"x": "1", "y": "2"}) == joined({"y": "2", "x": "1"}) != joined({"x": "2", "y": "1"})
    assert of({"empty": torch.empty(0, 3)}) == of({"empty": torch.empty(0, 3)})
