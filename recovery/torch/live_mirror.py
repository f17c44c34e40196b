"""Buffers of rank 0 in the memory of every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed

_ALIGNED_BYTES = 16
"""Enough for every dtype."""


class Mirror:
    """Rank 0's values of some buffers, twice: those of the last boundary, and those of the step that is under way.

    Attributes:
        numbers: which buffers.
    """

    def __init__(self, numbers: list[int], tensors: Sequence[torch.Tensor]) -> None:
        """Make room for tensors like these."""
        self.numbers = numbers
        self._pending, self._kept = _Flat(tensors), _Flat(tensors)

    def send(self, buffers: Sequence[torch.Tensor], *, asks: bool) -> bool:
        """A collective: rank 0's go to all. What is kept stays as it is.

        Args:
            buffers: this rank's, all of them.
            asks: rank 0 asks for a vote; of other ranks it is not read.

        Returns:
            Whether rank 0 asks.
        """
        if distributed.get_rank() == 0:
            if self.numbers:
                torch._foreach_copy_(self._pending.views, [buffers[number] for number in self.numbers])
            self._pending.bytes[-1] = asks
        distributed.broadcast(self._pending.bytes, 0)
        return bool(self._pending.bytes[-1])

    def turn(self, kept: list[torch.Tensor]) -> None:
        """What was sent last is kept."""
        self._pending, self._kept = self._kept, self._pending
        for number, view in zip(self.numbers, self._kept.views, strict=True):
            kept[number] = view


class _Flat:
    """Tensors one behind the other in memory, and a byte, so that they go out as one."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sizes = [-(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for tensor in tensors]
        self.bytes = torch.zeros(sum(sizes) + 1, dtype=torch.uint8, device=wire_device())
        self.views = [
            part[: tensor.nbytes].view(tensor.dtype).reshape(tensor.shape)
            for tensor, part in zip(tensors, torch.split(self.bytes[:-1], sizes), strict=True)
        ]


def wire_device() -> torch.device:
    """Where a tensor must be to go out in this world."""
    group = distributed.group.WORLD
    assert group is not None, "a world was formed"
    types = {device.type for device in group._device_types}  # noqa: SLF001 - torch has no public name for it
    return torch.device("cpu") if "cpu" in types else torch.device("cuda", torch.cuda.current_device())
