"""Every test of this folder finds the generators in the same state, alone or after any other."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """As a program that seeds all of them does."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
