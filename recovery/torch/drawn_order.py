"""The order in which a loader of torch's has drawn a pass of a data set with indexes: noted, and compared where the pass is drawn again.

A sampler whose weights training changes, or that shuffles by a generator of its own, gives another order then: samples would come twice, and others never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from recovery.torch.received import Received

_AHEAD_MAX = 8
"""Batches whose indexes are drawn before the loop is given them, without worker processes."""


class DrawnOrder:
    """Of one loader, over all of its passes."""

    def __init__(self, loader: DataLoader[Any], field: str) -> None:
        """Nothing is drawn yet; `field` is where the user has given the data."""
        self._loader, self._field = loader, field
        self._name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        ahead = loader.num_workers * (loader.prefetch_factor or 0)
        self._behind: deque[tuple[int, str]] = deque(maxlen=ahead + _AHEAD_MAX)
        self._expected = 0, ""

    def begin(self, count: int = 0, digest: str = "") -> Iterator[Any]:
        """Begin a pass: `iter(loader)`. It is compared with what `digest_of` gave of its first so many batches, as they are drawn; 0: it is a new one.

        Raises:
            CheckpointStateError: from the iterator: the order is another one.
        """
        self._expected = count if digest else 0, digest
        plain = getattr(self._loader, self._name)
        # torch refuses another sampler by attribute; processes that stay take the next pass's indexes from this one too.
        vars(self._loader)[self._name] = _Watched(plain, self)
        try:
            return iter(self._loader)
        finally:
            vars(self._loader)[self._name] = plain

    def digest_of(self, count: int) -> str:
        """Of the indexes of the first so many batches of the pass under way; empty: none, or nobody knows any more."""
        return dict(self._behind).get(count, "")

    def _drawn(self, sampler: Any) -> Iterator[Any]:
        count, digest = self._expected
        self._expected = 0, ""
        self._behind.clear()
        received, of = Received(digest), f"the order that {type(sampler).__name__} gives"
        drawn: list[Any] = []
        # One by one, so that what was drawn last is what was compared last.
        compared = received.compared(_noted(iter(sampler), drawn), count, of=of, field=self._field)
        for number, _ in enumerate(compared, start=1):
            self._behind.append((number, received.digest))
            yield drawn.pop()


def _noted(batches: Iterator[Any], drawn: list[Any]) -> Iterator[Any]:
    for batch in batches:
        drawn[:] = [batch]
        # A batch of numbers as one text: hundreds of them are looked at in each step.
        yield str(batch) if type(batch) is list and {*map(type, batch)} == {int} else batch


class _Watched:
    def __init__(self, sampler: Any, order: DrawnOrder) -> None:
        self._sampler, self._order = sampler, order

    def __iter__(self) -> Iterator[Any]:
        return self._order._drawn(self._sampler)  # noqa: SLF001 - they belong together

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)
