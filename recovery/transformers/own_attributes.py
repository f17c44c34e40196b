"""What callbacks of the user's and a Trainer of one's own count: the Trainer saves attributes only that a callback gives by `state()` (ExportableState).

Kept are numbers, text and tensors, in lists and dicts too. What else changes is named (`event=attributes_not_kept`).
"""

from __future__ import annotations

import dis
import functools
import logging
from collections.abc import Iterator
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from recovery.torch import module_attributes
from recovery.torch.attribute_values import FRAMEWORKS, root
from recovery.torch.kept_attributes import Kept, KeptAttributes, Look, Place, with_inside

_logger = logging.getLogger("recovery.transformers")

_FRAMEWORKS = FRAMEWORKS | {"transformers", "accelerate", "builtins"}
_CALLED = ("compute_metrics", "compute_loss_func")
"""What the Trainer is given beside callbacks, and calls."""


class OwnAttributes:
    """Of one training: `prepare`, `begin` when the hooks of its beginning have run, `put` where it goes on, `take` in each save."""

    def __init__(self, trainer: Any) -> None:
        """Nothing has changed yet."""
        self._trainer = trainer
        self._kept = KeptAttributes(_attributes, self._name)
        self._named: set[Place] = set()
        self._begun: Look = {}

    def prepare(self) -> None:
        """Callbacks have what the Trainer loads."""
        self._begun = self._kept.prepare(self._holders(), self._known)

    def begin(self, saved: Kept | None) -> None:
        """What the hooks of the beginning have set may follow from where training stands: it is kept like what changes later, and put back if it is `saved`."""
        self._kept.note(self._begun, self._look(), names=False)
        self._kept.begin(dict(self._holders()), saved, self._trainer.args.device)
        self.put(saved or {})
        self._begun = self._look()

    def take(self) -> Kept:
        """All of it, as it is now. No tensor is copied."""
        self._kept.note(self._begun, self._look())
        return self._kept.take(dict(self._holders()))

    def put(self, saved: Kept) -> None:
        """Behind hooks that have run a second time."""
        self._kept.put(dict(self._holders()), saved, self._trainer.args.device)

    def called(self) -> Iterator[tuple[str, Any]]:
        """What the Trainer calls of the script's: these, and functions."""
        yield from self._holders()
        for name in _CALLED:
            found = getattr(self._trainer, name, None)
            if callable(found) and not _is_users(found):
                yield name, found

    def said(self) -> Iterator[dict[str, Any]]:
        """Attributes that callbacks give by their `state()`."""
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                names = _said_by(callback)
                yield {name: value for name, value in vars(callback).items() if name in names}

    def _look(self) -> Look:
        return self._kept.look(self._holders(), self._known)

    @property
    def _known(self) -> frozenset[int]:
        return module_attributes.ids_of([self._trainer.model])

    def _holders(self) -> Iterator[tuple[str, Any]]:
        """By a name that is the same at each start, in whatever order the Trainer has put the callbacks that it has loaded."""
        counted: dict[str, int] = {}
        for callback in self._trainer.callback_handler.callbacks:
            name = type(callback).__qualname__
            if _is_users(callback) or isinstance(callback, ExportableState):
                counted[name] = counted.get(name, -1) + 1
                yield f"{name}_{counted[name]}", callback
        if _is_users(self._trainer):
            yield type(self._trainer).__qualname__, self._trainer
        for name in _CALLED:
            found = getattr(self._trainer, name, None)
            if _is_users(found):
                yield name, found

    def _name(self, place: Place, holder: Any, value: Any) -> None:
        if place in self._named or (isinstance(holder, ExportableState) and place[1] in _said_by(holder)):
            return
        self._named.add(place)
        _logger.warning(
            "event=attributes_not_kept attribute=%s.%s reason='training changes it, and it is no number, text or tensor, or a large one': behind a rollback "
            "it is as the script builds it. If the next steps depend on it, keep numbers in attributes of the callback or the Trainer, or give the "
            "callback a state() (ExportableState)",
            *place,
        )


def _is_users(found: Any) -> bool:
    return hasattr(found, "__dict__") and root(type(found)) not in _FRAMEWORKS


def _said_by(holder: Any) -> set[str]:
    return {name.partition(".")[0] for of in holder.state().values() for name in of}


def _attributes(holder: Any, known: frozenset[int]) -> Iterator[tuple[str, Any]]:
    for name, value in own_of(holder):
        yield from with_inside(name, value, known)


def own_of(holder: Any) -> Iterator[tuple[str, Any]]:
    """Attributes that no method of a framework's sets."""
    theirs = frozenset() if isinstance(holder, ExportableState) else _of_frameworks(type(holder).__mro__)
    for name, value in vars(holder).items():
        if name not in theirs and not isinstance(value, transformers.Trainer):
            yield name, value


@functools.cache
def _of_frameworks(kinds: tuple[type, ...]) -> frozenset[str]:
    """Names of attributes that methods of a framework's classes set, of these."""
    functions = [
        function
        for of in kinds
        if root(of) in _FRAMEWORKS
        for function in vars(of).values()
        if hasattr(function, "__code__")
    ]
    return frozenset(name for function in functions for name in _set_in(function))


def _set_in(function: Any) -> Iterator[str]:
    before: Any = None
    for step in dis.get_instructions(function):
        # Later releases of Python load two names at once.
        loaded = before[-1] if isinstance(before, tuple) and before else before
        if step.opname == "STORE_ATTR" and loaded == "self":
            yield step.argval
        before = step.argval
