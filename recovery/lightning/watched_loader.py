"""A loader of the user's, as Lightning has prepared it, of which it is known where the loop is, so that a later process comes back to there.

A pass is begun again with the random generators as they were when it was begun, and what the loop had received is left out: by
number where one process reads a map-style data set, else drawn and dropped, since worker processes and iterators know only by that how
far they are. Then the generators are put to where they were before the next batch was asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from typing_extensions import override

from recovery.errors import CheckpointStateError
from recovery.torch.drawn_order import DrawnOrder
from recovery.torch.random_state import RandomState, capture_random_state, restore_random_state
from recovery.torch.received import Received
from recovery.torch.sampled_order import generators_of
from recovery.torch.sampler_counters import SamplerCounters
from recovery.training import current

_AHEAD_MAX = 3
"""Batches that Lightning asks for before the loop is given them: one of a loader without a length, and the one that it is given next."""
_FIELD = "train_dataloaders"
_NOT_SHOWN = frozenset({"state_dict", "load_state_dict"})
"""Lightning would save and load what this class puts back already."""


class WatchedLoader:
    """Gives what the loader gives, and has its attributes."""

    def __init__(self, loader: Any, at: dict[str, Any] | None) -> None:
        """Watch a loader, whatever Lightning iterates over. Its next pass goes on at a place that `place` said; None: at its beginning."""
        self.__dict__.update(
            _loader=loader, _at=at, _pass=None, _counters=SamplerCounters(loader), _order=_order_of(loader)
        )

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_SHOWN:
            raise AttributeError(name)
        return getattr(self.__dict__["_loader"], name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def plain(self) -> Any:
        """The loader itself."""
        return self.__dict__["_loader"]

    def __iter__(self) -> Iterator[Any]:
        at = self.__dict__["_at"]
        self.__dict__.update(
            _at=None, _pass=_Pass(self._loader, at, self.__dict__["_counters"], self.__dict__["_order"])
        )
        return self.__dict__["_pass"]  # type: ignore[no-any-return]  # what a dict of attributes holds has no type

    def place(self, ahead: int) -> dict[str, Any]:
        """Where the loop is, if so many batches were asked for `ahead` that no step has used yet."""
        of: _Pass = self.__dict__["_pass"]
        return of.place(ahead)


class _Pass:
    def __init__(
        self, loader: Any, at: dict[str, Any] | None, counters: SamplerCounters, order: DrawnOrder | None
    ) -> None:
        self._loader, self._at, self._counters, self._order = loader, at, counters, order
        self._before: deque[RandomState] = deque(maxlen=_AHEAD_MAX)
        """The random generators before each of the newest batches was asked for."""
        self._again: deque[RandomState] = deque()
        """The same of batches that were asked for before the place that this pass goes on at, and are again."""
        self._received = 0
        self._first: RandomState | None = None
        """They before the first batch was asked for: hooks of the epoch's begin may have drawn since the pass was begun, and samplers draw only then."""
        self._is_stream = order is None
        self._stream, self._drawn = (
            Received(at.get("drawn", "") if at else ""),
            deque([""], maxlen=_AHEAD_MAX + 1),
        )
        """What a stream has given, and had given behind each of the newest batches."""
        self._batches: Iterator[Any] | None = None
        if at is None:
            own = [generator.get_state() for generator in generators_of(loader)]
            self._begun: dict[str, Any] = {
                "random": capture_random_state(),
                "own": own,
                "counted": counters.state(),
                # Of worker processes that have stayed: they are given no seed, which would be drawn first.
                "is_further": getattr(loader, "_iterator", None) is not None,
            }
            self._batches = self._noted(iter(loader), 0) if order is None else order.begin()
        else:
            self._begun, self._first = at["begun"], at.get("first")
            counters.restore(self._begun.get("counted", {}))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            # Only now: worker processes read ahead at once, and Lightning tells the sampler of its epoch behind `iter`.
            self._batches = self._go_on()
        if self._again:
            restore_random_state(self._again.popleft())
        self._before.append(capture_random_state())
        self._first = self._first or self._before[-1]
        if (session := current.current_session()) is not None:
            session.phases.times.wants()
        batch = next(self._batches)
        if session is not None:
            session.phases.times.drawn()
        self._received += 1
        self._drawn.append(self._stream.digest)
        return batch

    def place(self, ahead: int) -> dict[str, Any]:
        return {
            "begun": self._begun,
            "first": self._first,
            "received": self._received - ahead,
            "before": list(self._before)[len(self._before) - ahead :],
            "drawn": self._drawn[-1 - ahead],
            "order": self._order.digest_of(self._received - ahead) if self._order else "",
        }

    def _go_on(self) -> Iterator[Any]:
        at = self._at
        assert at is not None, "a pass from its beginning has its iterator"
        if at["begun"].get("is_further") and self._order is not None:
            self._order.begin()
            self._counters.restore(at["begun"]["counted"])
        saved = at["begun"]["own"]
        # Earlier releases saved none of samplers inside others, which come last.
        for generator, state in zip(generators_of(self._loader)[: len(saved)], saved, strict=True):
            generator.set_state(state)
        restore_random_state(at["begun"]["random"])
        # Earlier releases have noted no order.
        batches: Iterator[Any] = (
            self._order.begin(at["received"], at.get("order", "")) if self._order else iter(self._loader)
        )
        if self._first is not None:
            restore_random_state(self._first)
        if isinstance(batches, _SingleProcessDataLoaderIter) and not self._is_stream:
            self._leave_out(batches._next_index, at["received"])  # noqa: SLF001 - torch has no public way past a batch
        elif not self._is_stream:
            self._leave_out(batches.__next__, at["received"])
        else:
            batches = self._noted(batches, at["received"])
        self._received = at["received"]
        self._again = deque(at["before"])
        self._drawn.append(self._stream.digest)
        return batches

    def _noted(self, batches: Iterator[Any], received: int) -> Iterator[Any]:
        kind = type(getattr(self._loader, "dataset", self._loader)).__name__
        return self._stream.draw_again(batches, received, of=f"the pass of {kind}", field=_FIELD)

    def _leave_out(self, leave_out: Callable[[], object], received: int) -> None:
        for _ in range(received):
            try:
                leave_out()
            except StopIteration:
                raise CheckpointStateError(
                    field=_FIELD,
                    reason=f"ended before batch {received}, where the checkpoint stands",
                    next_step="Give the data that the checkpoint was made with.",
                ) from None


def _order_of(loader: Any) -> DrawnOrder | None:
    is_stream = not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)
    return None if is_stream else DrawnOrder(loader, _FIELD)
