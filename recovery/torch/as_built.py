"""What the program had built where training began: a start builds the same again, and loads a checkpoint into it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from recovery.torch import buffers, module_names, outside_state_dict, overrides

_ANY = "of any shape"
_ADAPTING = ("torch.ao.quantization", "torch.quantization")
"""Whose buffers take the shape that is loaded, as lazy ones do: observers of ranges learn in their first pass how many channels there are."""

_logger = logging.getLogger("recovery.torch")


class AsBuilt:
    """Noted before the first step and before anything is loaded."""

    def __init__(self, parts: outside_state_dict.Parts) -> None:
        """What the parts are now."""
        self._is_said = False
        self.options: overrides.Built = overrides.built(dict(_bare(parts)))
        self._shapes: dict[tuple[str, int], dict[str, str]] = {}
        self._groups: dict[tuple[str, int], list[outside_state_dict.Group]] = {}
        self._counts = {part: len(items) for part, items in parts.items()}
        trained = outside_state_dict.trained(parts)
        self._known = frozenset(trained)
        for part, number, item in outside_state_dict.items_of(parts):
            if isinstance(item, torch.optim.Optimizer):
                self._groups[part, number] = outside_state_dict.groups_of(item, trained)
            elif isinstance(item, torch.nn.Module):
                self._shapes[part, number] = _shapes(item)

    def compare(self, parts: outside_state_dict.Parts) -> None:
        """At a save: say once what a start could not load into what it builds. `parts` are as they are now."""
        if self._is_said:
            return
        found = self._of_counts(parts) or self._of_modules(parts) or self._of_optimizers(parts)
        if found:
            self._is_said = True
            _logger.warning(
                "event=structure_changed %s. A start loads this checkpoint only if the program has built that before it comes to session.steps, and "
                "ends with CHECKPOINT_STATE otherwise: build it at the begin, or where session.step says that training is behind the change",
                found,
            )

    def _of_counts(self, parts: outside_state_dict.Parts) -> str:
        now = {part: len(items) for part, items in parts.items()}
        other = next((part for part in now if now[part] != self._counts.get(part)), None)
        return (
            other
            and f"{other} were {self._counts.get(other, 0)} objects where training began, and are {now[other]}"
        ) or ""

    def _of_modules(self, parts: outside_state_dict.Parts) -> str:
        for part, number, item in outside_state_dict.items_of(parts):
            if (part, number) not in self._shapes:
                continue
            built, now = self._shapes[part, number], _shapes(item)
            for name in [*built, *(name for name in now if name not in built)]:
                before, here = built.get(name), now.get(name)
                if before != here and _ANY not in (before, here):
                    had = f"was {before}" if before else "was not there"
                    return f"{part}[{number}].{name} {had} where training began, and {f'is {here}' if here else 'is gone'}"
        return ""

    def _of_optimizers(self, parts: outside_state_dict.Parts) -> str:
        trained = outside_state_dict.trained(parts)
        for part, number, item in outside_state_dict.items_of(parts):
            built = self._groups.get((part, number))
            if built is None:
                continue
            now = outside_state_dict.groups_of(item, trained)
            if now != built and not outside_state_dict.added_groups(built, now, self._known):
                return (
                    f"{part}[{number}] had groups of {[len(group) for group in built]} parameters where training began, and has groups of "
                    f"{[len(group) for group in now]}"
                )
        return ""


def _bare(parts: outside_state_dict.Parts) -> Iterator[tuple[str, list[Any]]]:
    for part, items in parts.items():
        yield part, [module_names.bare(item) for item in items]


def _shapes(item: torch.nn.Module) -> dict[str, str]:
    """Of what its state_dict has: to ask for that itself is a collective where it is spread over ranks."""
    named: dict[str, Any] = dict(item.named_parameters(remove_duplicate=False))
    kept = {place.name for place in buffers.buffers_of(item) if place.persistent}
    named |= {
        name: buffer
        for name, buffer in item.named_buffers(remove_duplicate=False)
        if module_names.plain(name) in kept
    }
    plain = module_names.plain_names(named)
    adapting = {
        f"{module_names.plain(prefix)}.{field}".lstrip(".")
        for prefix, module in item.named_modules(remove_duplicate=False)
        if type(module).__module__.startswith(_ADAPTING)
        for field in module._buffers  # noqa: SLF001 - torch has no public name for those of one module
    }
    return {
        plain[name]: _ANY
        if is_lazy(value) or plain[name] in adapting
        else f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for name, value in named.items()
    }
