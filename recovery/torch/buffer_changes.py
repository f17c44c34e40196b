"""Which buffers has training changed since a generation began?

A tensor's version says little here: batch normalisation writes its running statistics without counting it (torch 2.13). So small
floating buffers are copied whatever their version is, and what has changed is found by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from recovery.torch.live_parts import Buffer

_SMALL_BYTES = 2**20
"""A floating buffer of more than this is a table and no statistic: it is copied when its version has risen."""


class Seen(NamedTuple):
    """A buffer at some moment."""

    tensor: torch.Tensor
    version: int


class BufferChanges:
    """What the buffers were when the generation began."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        """They are now what they have not changed from."""
        self.buffers = list(buffers)
        self.always = [
            tensor.is_floating_point() and tensor.nbytes <= _SMALL_BYTES for tensor, _ in self.now()
        ]
        """Which are copied whatever their version is."""
        # What is large is not copied, and known by its version.
        self._first, self._first_seen = self.copies(), self.now()

    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [buffer.tensor.detach() for buffer in self.buffers]

    def now(self) -> list[Seen]:
        """All of them, to be compared later."""
        return [
            Seen(tensor, tensor._version)  # noqa: SLF001 - counts changes in place
            for tensor in [buffer.tensor for buffer in self.buffers]
        ]

    def copies(self) -> list[torch.Tensor | None]:
        """Of the small ones."""
        return [
            tensor.detach().clone() if always else None
            for (tensor, _), always in zip(self.now(), self.always, strict=True)
        ]

    def since_begin(self, number: int, tensor: torch.Tensor, seen: Seen) -> bool:
        """Has it changed since the generation began? By its bytes, of which `tensor` may be a copy; what is large by its version, as `seen`."""
        first = self._first[number]
        return differ(self._first_seen[number], seen) if first is None else not alike(first, tensor)

    def counts_of_rank_0(self, number: int) -> bool:
        """Is it one whose value of rank 0 counts where it changes? Counters are alike on every rank."""
        buffer = self.buffers[number]
        return buffer.alike and buffer.tensor.is_floating_point()


def differ(one: Seen, other: Seen) -> bool:
    """By their versions."""
    return one.tensor is not other.tensor or one.version != other.version


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit: a number that is none is like itself."""
    return one.shape == other.shape and torch.equal(
        one.detach().reshape(-1).view(torch.uint8), other.detach().reshape(-1).view(torch.uint8)
    )
