"""What a program has beside its training state, so that it begins again behind a failure: random generators, schedules, optimizers, copies of weights.

One place for a state by parts and for the trainers of frameworks, which say what they keep (around.py). It is named, and schedules are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recovery.torch import own_generators, schedules
from recovery.torch.around import OF_STATE, Advice, Around
from recovery.torch.weight_copies import WeightCopies


class Beside:
    """Of one training: `note_built` before anything is loaded, `note_generators` before the first step, `report` at each save."""

    def __init__(
        self,
        parts: Callable[[], Mapping[str, Sequence[Any]]],
        around: Callable[[], Around] = Around,
        advice: Advice = OF_STATE,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            parts: gives all whose state a checkpoint has, by part, as they are now.
            around: gives what a framework's trainer has besides.
            advice: what a script is to do.
        """
        self._parts, self._around, self._advice = parts, around, advice
        self._copies: WeightCopies | None = None
        self._is_checked = False
        self._given: list[Any] = []
        """Where training began. A trainer may have put another schedule in the place of one: the one is no stranger."""

    def note_built(self) -> None:
        """Sample the weights that no part has."""
        parts = self._parts()
        self._copies = WeightCopies(parts, self._around())
        self._given = [] if self._is_checked else [item for items in parts.values() for item in items]

    def note_generators(self) -> None:
        """Name the generators that no part has."""
        own_generators.note_program(self._parts(), self._around(), self._advice)

    def check(self) -> None:
        """Look for schedules, once: where training begins, or at the first save behind a restore.

        Raises:
            UsageError: nobody has given one of them.
        """
        if self._is_checked:
            return
        parts = self._parts()
        now = {id(item) for items in parts.values() for item in items}
        earlier = [item for item in self._given if id(item) not in now]
        schedules.check({**parts, "earlier": earlier}, self._around(), self._advice)
        self._is_checked, self._given = True, []

    def report(self) -> None:
        """At a save: look for schedules, and name the copies that the steps have changed.

        Raises:
            UsageError: as for `check`.
        """
        self.check()
        # At the first save alone: no later one gathers all of it again.
        copies, self._copies = self._copies, None
        if copies is not None:
            copies.report(self._parts(), self._around(), self._advice)
