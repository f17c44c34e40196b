"""Random generators as a function of (seed, rank, step), for `MS_ROLLBACK=live`.

What a dead process's generators were is lost with it. In this mode nobody needs to know: at every boundary between two steps all
generators are seeded from numbers that any process can say, so the first draw behind step T is the same in the process that did
step T and in one that was started a moment ago.
"""

from __future__ import annotations

import functools
import hashlib
import random  # noqa: TID251 - training's own generator, seeded here
import sys
from typing import NamedTuple

import torch


def base_seed() -> int:
    """What PyTorch's generator was seeded with: by the program, else PyTorch's constant. Nothing is drawn.

    Take it once per entry of the training function, before a checkpoint is loaded and before anything is keyed: both change it. It is
    there again at the next entry, since generators are put back before it (`restore_random_state` brings the seed as well).
    """
    return torch.initial_seed()


class _Line(NamedTuple):
    """Seeds `origin + step * stride` modulo 2**bits: with an odd stride no two steps of 2**bits have the same."""

    origin: int
    stride: int
    bits: int

    def at(self, step: int) -> int:
        return (self.origin + step * self.stride) % (1 << self.bits)


class _Lines(NamedTuple):
    """Where the seeds of one job's rank lie."""

    python: _Line
    torch: _Line
    numpy: _Line


def key_generators(seed: int, rank: int, step: int) -> None:
    """Seed Python's, NumPy's (if loaded) and PyTorch's generators for what is drawn behind `step`, and those of CUDA devices in use.

    Args:
        seed: of the job, see `base_seed`.
        rank: ranks that draw the same numbers give the same one.
        step: 0-based count of the steps applied: 0 before the first.

    Cost: about 10 us, and several times as much behind a pause, when the processor has forgotten this code: so there is no digest in it.
    No device is woken. What a program draws from generators of its own making is its own affair.
    """
    lines = _lines(seed, rank)
    random.seed(lines.python.at(step))
    for_torch = lines.torch.at(step)
    # torch.manual_seed would also queue seeds for devices that nobody uses, which takes 200 us.
    torch.default_generator.manual_seed(for_torch)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch ships it without types
        torch.cuda.manual_seed_all(for_torch)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # One number of 32 bits: NumPy takes three times as long for an array of them.
        numpy.random.seed(lines.numpy.at(step))


@functools.lru_cache(maxsize=8)
def _lines(seed: int, rank: int) -> _Lines:
    # Each generator has its own: they are the same algorithm, and would give the same numbers from the same seed. Each rank has its
    # own stride: on 32 bits many ranks would otherwise walk through the same seeds one behind the other.
    return _Lines(
        *(_line(name, bits, seed, rank) for name, bits in (("python", 96), ("torch", 63), ("numpy", 32)))
    )


def _line(name: str, bits: int, seed: int, rank: int) -> _Line:
    origin = int.from_bytes(digest_of(f"{name} origin", seed, rank), "big")
    stride = int.from_bytes(digest_of(f"{name} stride", seed, rank), "big")
    return _Line(origin % (1 << bits), stride % (1 << bits) | 1, bits)


def digest_of(purpose: str, *numbers: int) -> bytes:
    """32 bytes that follow from these alone."""
    return hashlib.sha256(repr((purpose, *numbers)).encode()).digest()
