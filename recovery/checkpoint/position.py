"""Where in the data training stands: one value, which the session owns, every checkpoint carries and every loader is asked to take."""

from __future__ import annotations

import msgspec

from recovery.core.message_fields import Count


class Position(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A point between two steps. Whether training is over is decided by it alone, for every caller and whenever it was saved."""

    step: Count
    """Steps applied, over all passes."""
    epoch: Count
    """Passes over the data that are finished: the end of the last one is (epochs, 0)."""
    batch: Count
    """Batches used of the pass under way. All of them: that pass is finished as soon as the loader is asked for more."""
    samples: Count = 0
    """Samples of this rank in these batches; 0: its loader does not count them."""

    def is_over(self, epochs: int) -> bool:
        """Is nothing left of so many passes?"""
        return self.epoch >= epochs

    def next_epoch(self) -> Position:
        """The same step, with the pass under way finished."""
        return Position(step=self.step, epoch=self.epoch + 1, batch=0)
