"""A prepared loader of a stream: what it has drawn is noted, and compared where a pass is drawn again (recovery/torch/received.py).

Looked at is the loader inside, before its batches are moved to a device, or dispatched by rank 0 alone. A prepared loader of Accelerate 1.15 begins each
pass by asking that one's `__iter__` by name, and draws ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from torch.utils.data import IterableDataset

from recovery.torch.received import Received


class Place(TypedDict):
    """How far a pass was drawn in this process, and a digest of that."""

    count: int
    digest: str


class StreamWatch:
    """Of one loader; of a data set with indexes it does nothing."""

    def __init__(self, loader: Any, field: str) -> None:
        """Watch every pass that begins from now on. `field` is where the user has given the data."""
        data = getattr(loader, "dataset", None)
        self.is_stream, self._field = isinstance(data, IterableDataset), field
        self._received, self._count, self._expected = Received(), 0, 0
        # Accelerate has a data set of its own around it, which takes a rank's part.
        self._of = f"the pass of {type(getattr(data, 'dataset', data)).__name__}"
        self._inner = getattr(loader, "base_dataloader", loader)
        if self.is_stream:
            setattr(self._inner, "__iter__", self._begin_pass)  # noqa: B010 - of this object

    def place(self) -> Place:
        """Say where the pass under way stands."""
        return {"count": self._count, "digest": self._received.digest}

    def expect(self, place: Place) -> None:
        """Say that the next pass is drawn again, and compare it."""
        self._received, self._expected = Received(place["digest"]), place["count"]

    def _begin_pass(self) -> Iterator[Any]:
        expected, self._expected, self._count = self._expected, 0, 0
        batches = type(self._inner).__iter__(self._inner)
        for batch in self._received.compared(batches, expected, of=self._of, field=self._field):
            self._count += 1
            yield batch
