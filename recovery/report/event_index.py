"""The event log of one run, indexed once: a question costs what its answer is long, not what the log is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from recovery.core.records import EventKind
from recovery.store.reader import StoredEvent


class EventIndex:
    """The events of one run, by kind and by generation. A position is an event's place in `events`."""

    def __init__(self, events: Sequence[StoredEvent]) -> None:
        """Read all events once; oldest first."""
        self.events = events
        self._positions: dict[EventKind, list[int]] = {}
        self._of_generation: dict[int, list[StoredEvent]] = {}
        for position, stored in enumerate(events):
            self._positions.setdefault(stored.event.kind, []).append(position)
            if stored.event.generation is not None:
                self._of_generation.setdefault(stored.event.generation, []).append(stored)

    def of_kind(self, kind: EventKind) -> Iterator[tuple[int, StoredEvent]]:
        """Every event of a kind with its position."""
        return ((position, self.events[position]) for position in self._positions.get(kind, ()))

    def in_generation(self, generation: int, *kinds: EventKind) -> list[StoredEvent]:
        """Events of these kinds that name a generation."""
        return [stored for stored in self._of_generation.get(generation, ()) if stored.event.kind in kinds]

    def first_from(self, position: int, *kinds: EventKind) -> int | None:
        """Position of the first event of these kinds at `position` or after it."""
        found = [self._first_of_kind_from(kind, position) for kind in kinds]
        return min((first for first in found if first is not None), default=None)

    def last_before(self, position: int, kind: EventKind) -> int | None:
        """Position of the last event of a kind before `position`."""
        positions = self._positions.get(kind, [])
        index = bisect_left(positions, position)
        return positions[index - 1] if index else None

    def _first_of_kind_from(self, kind: EventKind, position: int) -> int | None:
        positions = self._positions.get(kind, [])
        index = bisect_left(positions, position)
        return positions[index] if index < len(positions) else None
