"""What `TrainState` and `Session.steps` need of a loader: it counts passes, and the batches of the pass under way that the loop has received."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any


class Passes(ABC):
    """Iterating gives the rest of the current epoch; when it is used up, or a loop has left it at its length and iterates again, the loader is at the next."""

    _redivide: bool | None = None
    """May a pass that another batch_size was used for be taken up at its sample? None: it cannot."""

    def __init__(self, batch_size: int) -> None:
        """Stand before the first batch of the first epoch.

        Args:
            batch_size: samples of a batch; 0: nobody knows.
        """
        self._batch_size = batch_size
        self._epoch = 0
        self._received = 0
        """Batches."""
        self._samples = 0
        """In these batches, which may have had another size before."""
        self._is_iterated = False
        self._primed: Iterator[Any] | None = None
        self._open: Any = None
        self._inner_state: Any = None

    @property
    def batch_size(self) -> int:
        """Samples of a batch; 0: nobody knows."""
        return self._batch_size

    def __iter__(self) -> Iterator[Any]:
        """Give the rest of the current epoch; after a loop that has stopped at its length, the next epoch."""
        if self._is_iterated and self._is_used_up():
            self._next_epoch()
        self._is_iterated = True
        return self._rest_of_epoch(self._epoch)

    def _rest_of_epoch(self, epoch: int) -> Iterator[Any]:
        if epoch != self._epoch:
            return
        batches = self._primed if self._primed is not None else self._begin()
        self._primed = None
        for batch in batches:
            self._received += 1
            self._samples += self._batch_size
            yield batch
            if epoch != self._epoch:
                # Another iteration has gone on to a later epoch.
                return
        self._next_epoch()

    def _next_epoch(self) -> None:
        self._epoch, self._received, self._inner_state = self._epoch + 1, 0, None
        self._samples, self._is_iterated = 0, False

    @abstractmethod
    def __len__(self) -> int:
        """Batches of a pass. TypeError: nobody knows."""

    def redivide(self) -> bool:
        """Let a pass that was begun with another batch_size go on with this one. False: it cannot."""
        if self._redivide is not None:
            self._redivide = True
        return bool(self._redivide)

    @property
    def length(self) -> int | None:
        """Batches of the pass under way; None: it does not say."""
        try:
            return len(self)
        except Exception:  # noqa: BLE001 - of the user's data set; what is wrong with an order is said where it is drawn
            return None

    @property
    def epoch(self) -> int:
        """Passes that are finished."""
        return self._epoch

    @property
    def batch(self) -> int:
        """Batches that the loop has received of the pass under way."""
        return self._received

    @property
    def samples(self) -> int:
        """Samples in them; 0: it does not count them."""
        return self._samples

    @property
    def position(self) -> dict[str, Any]:
        """Where all ranks' loaders are, in the division that `division` says. Asked at each step."""
        return {"epoch": self._epoch, "received": self._received, "samples": self._samples}

    @property
    def drawn(self) -> str:
        """Digest of what the loop has received of the pass, to be compared where it is drawn again: of this rank alone. Empty: it need not be."""
        return ""

    def prime(self) -> None:
        """Make the iterator at the position now, drawing whatever that draws, before the random generators are put back.

        Not where a pass is yet to begin: what it draws follows from the generators as they are then.
        """
        if self._received:
            self._primed = self._begin()

    def close(self) -> None:
        """End the worker processes of an iteration that was left."""
        opened, self._open, self._primed = self._open, None, None
        shut_down = getattr(opened, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()

    @abstractmethod
    def _is_used_up(self) -> bool:
        """Has the loop received every batch of the epoch? Where it iterates again, it has left the iteration there."""

    @abstractmethod
    def _begin(self) -> Iterator[Any]:
        """The batches behind the position."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Where the loop is."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go there."""

    @abstractmethod
    def division(self) -> dict[str, Any]:
        """What decides which samples a batch has: the same number of batches is another place in another division."""

    def _changes(self, saved: Mapping[str, Any]) -> dict[str, str]:
        """What of the division is other than it was saved: by name, in words."""
        here = self.division()
        return {
            name: f"{name} was {saved.get(name)} and is {here.get(name)}"
            for name in sorted(here.keys() | saved.keys())
            if here.get(name) != saved.get(name)
        }

    # --- live rollback -------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def why_not_derivable(self) -> str:
        """Why another process could not go on from a position alone, as a clause for people; empty: it could."""

    @abstractmethod
    def follow_keys(self, seed: int, number: int) -> None:
        """Let what it draws follow from these numbers. Called before a position is loaded and before anything is drawn."""

    @abstractmethod
    def load_position(self, state: Mapping[str, Any]) -> None:
        """Go where another rank's loader is, by its `position` and its division (`of`)."""
