"""What the program had built where training began: a start builds the same again, and loads a checkpoint into it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from recovery.torch import module_names, outside_state_dict, overrides

_logger = logging.getLogger("recovery.torch")


class AsBuilt:
    """Noted before the first step and before anything is loaded."""

    def __init__(self, parts: outside_state_dict.Parts) -> None:
        """What the parts are now."""
        self._is_said = False
        self.options = overrides.built(dict(_bare(parts)))
        self._shapes: dict[tuple[str, int], dict[str, str]] = {}
        self._groups: dict[tuple[str, int], list[outside_state_dict.Group]] = {}
        trained = outside_state_dict.trained(parts)
        self._known = frozenset(trained)
        for part, number, item in outside_state_dict.items_of(parts):
            if isinstance(item, torch.optim.Optimizer):
                self._groups[part, number] = outside_state_dict.groups_of(item, trained)
            elif isinstance(item, torch.nn.Module):
                self._shapes[part, number] = _shapes(module_names.state_of(item))

    def compare(self, parts: outside_state_dict.Parts, states: Mapping[str, Sequence[Any]]) -> None:
        """At a save: say once what a start could not load into what it builds.

        Args:
            parts: as they are now.
            states: of the parts, as they are saved.
        """
        if self._is_said:
            return
        found = self._of_modules(states) or self._of_optimizers(parts)
        if found:
            self._is_said = True
            _logger.warning(
                "event=structure_changed %s. A start loads this checkpoint only if the program has built that before it comes to session.steps, and "
                "ends with CHECKPOINT_STATE otherwise: build it at the begin, or where session.step says that training is behind the change",
                found,
            )

    def _of_modules(self, states: Mapping[str, Sequence[Any]]) -> str:
        for (part, number), built in self._shapes.items():
            now = _shapes(states[part][number])
            for name in [*built, *(name for name in now if name not in built)]:
                before, here = built.get(name), now.get(name)
                if before != here and "lazy" not in (before, here):
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


def _shapes(state: Any) -> dict[str, str]:
    return {
        str(name): "lazy"
        if is_lazy(value)
        else f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
    }
