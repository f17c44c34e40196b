"""What the program has built otherwise than the one that saved: a checkpoint's value is gone on with, and said, unless it is overridden by name."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler

from recovery.errors import UsageError
from recovery.torch.kept_generators import KeptGenerator
from recovery.torch.passes import Passes
from recovery.training import changed_since

_logger = logging.getLogger("recovery.torch")

BUILT = "as_built"
"""Where a file has it. Files of earlier releases have none: of them nobody knows."""
_PLAIN = (type(None), bool, int, float, str)
_LONGEST = 64
_INSIDE = "."
_NOT_BUILT = frozenset({"params", "param_names", "last_epoch", "_step_count", "_last_lr"})
"""What the program trains, and where a schedule stands."""
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")

Parts = Mapping[str, Sequence[Any]]
"""Objects by part, without wrappers."""
Built = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""By part, of each object: the options of each of an optimizer's groups, else what is plain in its state."""


class Change(NamedTuple):
    """A value that was built otherwise."""

    part: str
    number: int
    group: int
    key: str
    was: Any
    now: Any

    @property
    def where(self) -> str:
        """For people."""
        return f"{self.part}[{self.number}].{self.key}" + (f" of group {self.group}" if self.group else "")


def built(parts: Parts) -> Built:
    """What the parts are now, before training or a load changes them."""
    found = {part: [list(_of(item)) for item in items] for part, items in parts.items()}
    return {part: of_items for part, of_items in found.items() if any(of_items)}


def check(override: Mapping[str, Sequence[str]], parts: Parts, now: Built) -> None:
    """See that each name is one, before anything is loaded. A loader's is carried out where it takes its position.

    Raises:
        UsageError: a part or a value that there is not.
    """
    for part, keys in override.items():
        loaders = [item for item in parts.get(part, ()) if isinstance(item, Passes)]
        known = {key for of_item in now.get(part, ()) for values in of_item for key in values}
        if loaders and list(keys) == ["batch_size"] and all(loader.redivide() for loader in loaders):
            continue
        if part not in parts:
            reason = f"names the part {part!r}, and the parts are {sorted(parts)}"
        elif isinstance(keys, str) or not known.issuperset(keys):
            reason = f"names {keys!r} of {part!r}, and what may be named there, in a list, is {'batch_size of a ResumableLoader' if loaders else sorted(known)}"
        else:
            continue
        raise changed_since.refused(reason, example="lr")


def changes(saved: Built, now: Built) -> Iterator[Change]:
    """What is there in both, and differs."""
    for part, of_part in now.items():
        for number, (of_item, before) in enumerate(zip(of_part, saved.get(part, ()), strict=False)):
            for group, (values, others) in enumerate(zip(of_item, before, strict=False)):
                here, there = with_base(values), with_base(others)
                for key in sorted(here.keys() & there.keys()):
                    if repr(there[key]) != repr(here[key]):
                        yield Change(part, number, group, key, there[key], here[key])


def with_base(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rate that a schedule goes out from: where it has begun follows from that."""
    found = {key: value for key, value in values.items() if key not in ("base_lrs", "initial_lr")}
    return {**found, "lr": values["initial_lr"]} if "initial_lr" in values else found


def apply(override: Mapping[str, Sequence[str]], parts: Parts, saved: Built, now: Built) -> Built:
    """Behind a load: put in what is overridden, and say what is not.

    A learning rate that a schedule sets is multiplied by what the program has made of it, and the schedule's with it.

    Returns:
        What the job goes on with, for its next checkpoint: `now`, and of what is only said the checkpoint's, which a later start may override.
    """
    in_force = {
        part: [[dict(values) for values in of_item] for of_item in of_items] for part, of_items in now.items()
    }
    for change in changes(saved, now):
        if change.key not in override.get(change.part, ()):
            values = in_force[change.part][change.number][change.group]
            values["initial_lr" if change.key == "lr" and "initial_lr" in values else change.key] = change.was
            changed_since.say_kept(
                _logger, change.where, repr(change.was), repr(change.now), name=(change.part, change.key)
            )
            continue
        item = parts[change.part][change.number]
        if isinstance(item, torch.optim.Optimizer):
            _set_option(item, change, list(_schedules_of(item, parts)))
        else:
            item.load_state_dict(_changed(item.state_dict(), change.key.split(_INSIDE), change.now))
        changed_since.say_taken(_logger, change.where, repr(change.was), repr(change.now))
    return in_force


def _of(item: Any) -> Iterator[dict[str, Any]]:
    if isinstance(item, torch.optim.Optimizer):
        yield from (_plain(group) for group in item.param_groups)
    elif not isinstance(item, (torch.nn.Module, Passes, KeptGenerator)):
        state = item.state_dict()
        if isinstance(state, dict):
            yield _plain(state)


def _plain(state: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """What is plain in it, also in what it holds: `_schedulers.0.gamma`."""
    found = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
            value = value.item()  # noqa: PLW2901 - as a number: a rate that a compiled step reads
        if type(key) is not str or _INSIDE in key or key in _NOT_BUILT:
            continue
        if _is_plain(value):
            found[inside + key] = value
        elif isinstance(value, (list, dict)) and len(value) <= _LONGEST:
            held = value if isinstance(value, dict) else {str(place): one for place, one in enumerate(value)}
            found |= _plain(held, f"{inside}{key}{_INSIDE}")
    return found


def _changed(state: Any, path: Sequence[str], value: Any) -> Any:
    """A copy of it with another value at this place."""
    key: Any = int(path[0]) if isinstance(state, list) else path[0]
    copied = copy.copy(state)
    copied[key] = value if len(path) == 1 else _changed(state[key], path[1:], value)
    return copied


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return len(value) <= _LONGEST and all(type(one) in _PLAIN for one in value)
    return type(value) in _PLAIN


def _schedules_of(optimizer: torch.optim.Optimizer, parts: Parts) -> Iterator[LRScheduler]:
    left = [item for items in parts.values() for item in items]
    while left:
        item = left.pop()
        if isinstance(item, LRScheduler):
            left += getattr(item, "_schedulers", ())
            # Accelerate gives schedules the optimizer in a wrapper of its own.
            if getattr(item.optimizer, "optimizer", item.optimizer) is optimizer:
                yield item


def _set_option(optimizer: torch.optim.Optimizer, change: Change, schedules: Sequence[LRScheduler]) -> None:
    group = optimizer.param_groups[change.group]
    if change.key != "lr" or not schedules:
        _assign(group, change.key, change.now)
        return
    if not change.was:
        raise UsageError(
            field="override",
            reason=f"{change.where} was built as {change.was} and is scheduled, so that nothing tells what it is now with {change.now}",
            next_step="Begin a new job with the other schedule, from the weights of this one.",
        )
    factor = change.now / change.was
    for key in _RATES:
        if key in group:
            _assign(group, key, group[key] * factor)
    for schedule in schedules:
        for rates in (getattr(schedule, "base_lrs", []), getattr(schedule, "_last_lr", [])):
            if change.group < len(rates):
                rates[change.group] = rates[change.group] * factor


def _assign(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), torch.Tensor):
        # A compiled step knows this tensor.
        group[key].fill_(value)
    else:
        group[key] = value
