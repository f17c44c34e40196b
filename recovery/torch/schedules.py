"""Schedules of learning rates that are no part of a training state: behind a failure they would begin again, and nothing would say so.

They are found as objects: a schedule holds its optimizer, and Python's collector knows what does. torch's are refused. Of an object of the user's that holds
an optimizer and can `step`, nobody knows what it counts: it is named. So are another optimizer, a gradient scaler and averaged weights.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from recovery.errors import UsageError
from recovery.torch.around import OF_STATE, Advice, Around
from recovery.torch.attribute_values import is_users

_logger = logging.getLogger("recovery.torch")

_KINDS = (GradScaler, AveragedModel, torch.optim.Optimizer)
"""Looked for among all that there is."""
_DEEP = 4
"""From a part to a schedule that it holds: `SequentialLR._schedulers[0]` has two steps."""

_found_named: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers that were looked at. One that `session.keep` gives again may still be held by the last entry's schedule, until that is collected."""


def check(
    parts: Mapping[str, Sequence[Any]], around: Around | None = None, advice: Advice = OF_STATE
) -> None:
    """Look at what holds an optimizer. It takes the collector some 50 ms, so a restore leaves it to the first save.

    Args:
        parts: of the state.
        around: what a framework's trainer has besides.
        advice: what a script is to do.

    Raises:
        UsageError: something schedules an optimizer of these parts, and is neither a part nor held by one.
    """
    optimizers = [
        item for items in parts.values() for item in items if isinstance(item, torch.optim.Optimizer)
    ]
    new = [optimizer for optimizer in optimizers if optimizer not in _found_named]
    if not new:
        return
    others = [item for items in parts.values() for item in items if item not in optimizers]
    others += around.attributes_kept() if around else ()
    held = {id(value): value for value in held_by(others)}
    # A model's state has that of all in it, averaged weights too.
    held |= {id(one): one for value in [*held.values()] for one in _modules_in(value)}
    # Some wrap another one, whose state they give as theirs.
    inner = held_by(value for optimizer in optimizers for value in vars(optimizer).values())
    of_trainer = around.own if around else ()
    known = frozenset(map(id, [*held.values(), *others, *optimizers, *inner, *of_trainer]))
    may_be_others = False
    for optimizer in new:
        holders = [*_holders(optimizer)]
        name = _unnamed(optimizer, holders, held)
        may_be_others = may_be_others or bool(_others(holders, known))
        # What an earlier entry has left behind is gone with the next collection.
        holders.clear()
        if name:
            gc.collect()
            name = _unnamed(optimizer, [*_holders(optimizer)], held)
        if name:
            raise UsageError(
                field=advice.field,
                reason=f"{name} sets the learning rate of {type(optimizer).__name__} and is not named: it would begin again behind a failure",
                next_step=advice.schedule,
            )
    _found_named.update(new)
    if may_be_others or _others(_known_kinds(), known):
        _report_others(new, known, advice)


def _modules_in(value: Any) -> Iterable[torch.nn.Module]:
    return value.modules() if isinstance(value, torch.nn.Module) else ()


def _report_others(
    optimizers: Sequence[torch.optim.Optimizer], known: frozenset[int], advice: Advice
) -> None:
    """Say which objects go with these optimizers and are in no checkpoint."""
    # As above: what an earlier entry has left behind.
    gc.collect()
    of_optimizers = (holder for optimizer in optimizers for holder in _holders(optimizer))
    if names := _others([*of_optimizers, *_known_kinds()], known):
        _logger.warning(
            "event=not_a_part objects=%s they are used beside the optimizers of the state, and are not named: what they count is in no checkpoint, "
            "and begins again behind a failure. If the steps depend on it, %s",
            ",".join(names),
            advice.others,
        )


def _others(found: Iterable[Any], known: frozenset[int]) -> list[str]:
    """Classes of those that are none of these and may count steps. A scaler that is switched off has no state."""
    return sorted({type(one).__name__ for one in found if id(one) not in known and _may_count(one)})


def _may_count(found: Any) -> bool:
    if isinstance(found, GradScaler):
        return bool(found.is_enabled())
    if isinstance(found, torch.optim.Optimizer):
        # Plain SGD has nothing that could begin again, unless something schedules it.
        return type(found) is not torch.optim.SGD or any(
            group["momentum"] or "initial_lr" in group for group in found.param_groups
        )
    return isinstance(found, AveragedModel) or (
        is_users(found) and callable(getattr(type(found), "step", None))
    )


def _known_kinds() -> list[Any]:
    """An object refers to its class: the collector finds it sooner than a loop over all that there is."""
    kinds = [one for kind in _KINDS for one in _with_subclasses(kind)]
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for further in subclasses:
        yield from _with_subclasses(further)


def _unnamed(optimizer: torch.optim.Optimizer, holders: Iterable[Any], held: Mapping[int, Any]) -> str:
    """The class of a schedule of it that is none of these; empty: there is none."""
    found = [holder for holder in holders if isinstance(holder, LRScheduler)]
    for schedule in found:
        if id(schedule) not in held:
            return type(schedule).__name__
    # One of another library, as timm's: torch's are found above. Of a wrapper it may hold the optimizer inside, whose groups are the same.
    is_scheduled = any("initial_lr" in group for group in optimizer.param_groups)
    groups = id(optimizer.param_groups)
    is_held = any(
        isinstance(one, torch.optim.Optimizer) and id(one.param_groups) == groups for one in held.values()
    )
    return "a schedule" if is_scheduled and not found and not is_held else ""


def _holders(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """Objects that have it as an attribute."""
    for referrer in gc.get_referrers(optimizer):
        if type(referrer) is dict:
            yield from (
                one for one in gc.get_referrers(referrer) if getattr(one, "__dict__", None) is referrer
            )
        else:
            yield referrer


def held_by(values: Iterable[Any], depth: int = 0) -> Iterator[Any]:
    """These objects of a state, and what they hold."""
    for value in values:
        yield value
        if depth == _DEEP or isinstance(value, torch.nn.Module | torch.Tensor | torch.optim.Optimizer):
            continue
        if isinstance(value, (list, tuple)):
            yield from held_by(value, depth + 1)
        elif isinstance(value, dict):
            yield from held_by(value.values(), depth + 1)
        elif hasattr(type(value), "load_state_dict"):
            yield from held_by(vars(value).values(), depth + 1)
