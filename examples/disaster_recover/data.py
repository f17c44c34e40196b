"""MNIST for PyTorch, from the files that digits.py finds."""

from __future__ import annotations

from pathlib import Path

import digits
import torch
from torch.utils.data import Dataset

_MEAN, _DEVIATION = 0.1307, 0.3081


class Digits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images as float32 [1, 28, 28], scaled to 0..1 and normalised, with labels int64 []."""

    def __init__(self, directory: Path) -> None:
        """Read both files of a directory."""
        images, labels = digits.read(directory)
        pixels = torch.from_numpy(images).to(torch.float32)
        self._images = ((pixels / 255.0 - _MEAN) / _DEVIATION).unsqueeze(1)
        self._labels = torch.from_numpy(labels).to(torch.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._images[index], self._labels[index]


def load() -> Digits:
    """The data set: DATA_PATH's if that is set, else the bundled digits beside the working directory."""
    return Digits(digits.find())
