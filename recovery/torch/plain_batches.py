"""Batches that come from no loader, and plain values beside them: what a loop without epochs has.

A function is asked for the batch of a step and draws from the program's generators, which are in the checkpoint: nothing is drawn again. An iterable
is a stream whose items are batches: a `ResumableLoader` draws it again and compares (received.py).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils.data import IterableDataset
from typing_extensions import override

from recovery.errors import UsageError
from recovery.torch import restored, told_epoch
from recovery.torch.passes import Passes

_begun: weakref.WeakSet[Any] = weakref.WeakSet()
"""Iterators that were drawn from in this process, by an earlier entry of the training too."""


class FunctionBatches(Passes):
    """One pass without an end, of what a function gives for each step."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        """Take a function of the step that the batch is for: 1-based, `session.step + 1`."""
        super().__init__(0)
        self._function = function

    @override
    def __len__(self) -> int:
        raise TypeError

    @override
    def _is_used_up(self) -> bool:
        return False

    @override
    def _begin(self) -> Iterator[Any]:
        while True:
            yield self._function(self._received + 1)

    @override
    def division(self) -> dict[str, Any]:
        return {"batches of": "a function"}

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**self.position, "of": self.division()}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position.

        Raises:
            CheckpointStateError: in the middle of a pass of a loader, which is another place.
        """
        self._received = state["received"]
        if self._received and (said := ", ".join(self._changes(state.get("of", {})).values())):
            raise restored.unfit("loader", f"{said}, so batch {self._received} is another place")

    @property
    @override
    def why_not_derivable(self) -> str:
        return ""

    @override
    def follow_keys(self, seed: int, number: int) -> None:
        """It draws from the program's generators, which are keyed."""

    @override
    def load_position(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(dict(state))


class Batches(IterableDataset[Any]):
    """The items of an iterable, each a batch."""

    def __init__(self, source: Iterable[Any]) -> None:
        """Take an iterable, which begins again in each pass, or an iterator, which has one.

        Raises:
            UsageError: the iterator was drawn from before.
        """
        self.source = source
        self.kind = type(source).__name__
        self._is_iterator, self._begun = iter(source) is source, False
        if self._is_iterator and _is_begun(source):
            raise self._refused(reason="was drawn from in an earlier entry of the training")

    def set_epoch(self, epoch: int) -> None:
        """Tell it, and what it draws its batches from."""
        told_epoch.tell(self.source, epoch)

    @override
    def __iter__(self) -> Iterator[Any]:
        if self._is_iterator and self._begun:
            raise self._refused(reason="is an iterator, which gives one pass, and more is asked of it")
        self._begun, is_empty = True, True
        for batch in self.source:
            is_empty = False
            yield batch
        if is_empty:
            raise self._refused(reason="gives no batch")

    def _refused(self, *, reason: str) -> UsageError:
        return UsageError(
            field="batches",
            reason=f"the {self.kind} {reason}",
            next_step="Build it where the training begins, and give an iterable that can be begun again, a function of the step, or fewer steps.",
        )


class PlainValues:
    """A dictionary of plain values as a part of the training state: the loop goes on using the dictionary itself."""

    def __init__(self, values: MutableMapping[str, Any]) -> None:
        """Hold it."""
        self._values = values

    def state_dict(self) -> dict[str, Any]:
        """What is in it now."""
        return copy.deepcopy(dict(self._values))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put that in the place of what is in it: the loop may hold a list, a dictionary or a tensor of it by a name of its own."""
        _put(self._values, state)


def _put(here: Any, saved: Any) -> Any:
    """What `here` is to be from now on: itself with what was saved, where it can be."""
    if isinstance(here, MutableMapping) and isinstance(saved, Mapping):
        values = {key: _put(here.get(key), value) for key, value in saved.items()}
        here.clear()
        here.update(values)
        return here
    if isinstance(here, list) and isinstance(saved, list):
        here[:] = [
            _put(here[number] if number < len(here) else None, value) for number, value in enumerate(saved)
        ]
        return here
    if isinstance(here, torch.Tensor) and isinstance(saved, torch.Tensor):
        if (here.shape, here.dtype, here.layout) != (saved.shape, saved.dtype, saved.layout):
            return saved.to(here.device, copy=True)
        with torch.no_grad():
            return here.copy_(saved)
    return copy.deepcopy(saved)


def _is_begun(iterator: Iterable[Any]) -> bool:
    try:
        if iterator in _begun:
            return True
        _begun.add(iterator)
    except TypeError:
        # Those of C take no weak reference: where one goes on in the middle, its digest says so behind a restart.
        pass
    return False
