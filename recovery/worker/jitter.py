"""Random waits. Never from the `random` module: its generator belongs to training and is part of every checkpoint."""

from __future__ import annotations

import secrets

_STEPS = 1 << 20


def jitter() -> float:
    """A random number in [0, 1)."""
    return secrets.randbelow(_STEPS) / _STEPS
