"""Which ranks the scheduler has found to be slow, and since when (MS_STRAGGLER_PERCENT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from recovery.core.ids import Generation
from recovery.core.policy.stragglers import Straggler

_LOOKS_MS = 2_000
"""Between two looks at all ranks: their figures are medians over many steps."""
_LASTING_MS = 10_000
"""So long a rank is slow at each look before that is told, and well before the end of it is. At a look or two a job of short steps would tell of each
program that another user starts beside it."""


class Verdicts(NamedTuple):
    """What has changed with a look."""

    found: list[Straggler]
    cleared: list[Straggler]
    """As each was last seen to be slow."""


class StragglerWatch:
    """Of this process and one generation. Nothing of it is stored: the ranks say again how they come on."""

    def __init__(self) -> None:
        """No rank has spoken."""
        self._generation = Generation(0)
        self._looked_ms = 0
        self._turned_ms: dict[str, int] = {}
        """Of each node that is at each look other than it was told to be, since when."""
        self._told: dict[str, Straggler] = {}

    def of(self, generation: Generation) -> list[Straggler]:
        """Those that are told to be slow in this generation, slowest first."""
        if generation != self._generation:
            return []
        return sorted(self._told.values(), key=lambda one: -one.own_us)

    def may_look(self, generation: Generation, now_ms: int) -> bool:
        """Was the last look at all ranks long enough ago? Then this is the next one. What was found of another generation says nothing of this one."""
        if generation != self._generation:
            self._generation, self._looked_ms = generation, now_ms
            self._turned_ms.clear()
            self._told.clear()
        if now_ms - self._looked_ms < _LOOKS_MS:
            return False
        self._looked_ms = now_ms
        return True

    def note(self, slow: Sequence[Straggler], now_ms: int) -> Verdicts:
        """These are slow now, and no other one."""
        seen = {one.node_id: one for one in slow}
        self._told.update({node_id: one for node_id, one in seen.items() if node_id in self._told})
        turned = seen.keys() ^ self._told.keys()
        self._turned_ms = {node_id: self._turned_ms.get(node_id, now_ms) for node_id in turned}
        lasting = sorted(node_id for node_id in turned if now_ms - self._turned_ms[node_id] >= _LASTING_MS)
        found = [seen[node_id] for node_id in lasting if node_id in seen]
        cleared = [self._told.pop(node_id) for node_id in lasting if node_id not in seen]
        self._told.update({one.node_id: one for one in found})
        return Verdicts(found, cleared)
