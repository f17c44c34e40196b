"""What a script has a framework's trainer build, from start to start: options of optimizers and schedules, sizes of batches. What has changed is said by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from recovery.torch import module_names, overrides, restored, same_options
from recovery.training import changed_since
from recovery.training.changed_since import Override

_logger = logging.getLogger("recovery.torch")

_OPTIONS, _SETTINGS = "options", "settings"


def size_of(models: Iterable[torch.nn.Module]) -> int:
    """How many parameters they have."""
    return sum(one.numel() for model in models for one in model.parameters())


def check_size(saved: Mapping[str, Any], setting: str, models: Iterable[torch.nn.Module]) -> None:
    """Before the framework loads weights into these.

    Args:
        saved: by `TrainerOptions.take`; empty: by an earlier release.
        setting: which counts the parameters.
        models: all that are counted.

    Raises:
        CheckpointStateError: there were fewer parameters, or more.
    """
    count = size_of(models)
    was = saved.get(_SETTINGS, {}).get(setting, count)
    if was != count:
        raise restored.unfit("model", f"has {count} parameters, and had {was} where it was saved")


class TrainerOptions:
    """Of one training: noted before the framework loads its checkpoint, `put` behind that, and `take` in each save."""

    def __init__(
        self,
        parts: Mapping[str, Sequence[Any]],
        override: Override | None,
        *,
        settings: Mapping[str, Any],
        conditions: Mapping[str, str],
        are_replicas: bool = True,
    ) -> None:
        """Look at what was built, and compare it with the other ranks.

        Args:
            parts: optimizers and schedules.
            override: names of what is to be as the script builds it, where a checkpoint says otherwise.
            settings: numbers and text by which the framework trains on as they are now.
            conditions: versions, a digest of the script.
            are_replicas: the gradients are averaged over the ranks.

        Raises:
            UsageError: the override names what there is not, or an option differs between replicas.
        """
        self._parts = {part: [module_names.bare(item) for item in items] for part, items in parts.items()}
        self._override, self._settings = override or {}, dict(settings)
        self._options = overrides.built(self._parts)
        overrides.check(self._override, self._parts, self._options)
        same_options.check(self._options, {**settings, **conditions}, are_replicas=are_replicas)

    def take(self) -> dict[str, Any]:
        """For a checkpoint: what is in force, numbers and text."""
        return {_OPTIONS: self._options, _SETTINGS: self._settings}

    def put(self, saved: Mapping[str, Any], *, fixed: Sequence[str] = ()) -> None:
        """Say what has changed since `take` gave this, and carry out the override. Earlier releases have saved nothing.

        Raises:
            CheckpointStateError: one of the settings that are `fixed` has changed: the place in the data is counted by it.
        """
        if not saved:
            return
        before = saved[_SETTINGS]
        for name in sorted(before.keys() & self._settings.keys()):
            was, now = before[name], self._settings[name]
            if was == now:
                continue
            if name in fixed:
                raise restored.unfit(
                    name,
                    f"was {was} and is {now}, and training goes on in the middle of a pass that it divides",
                )
            changed_since.say_gone_on_with(_logger, name, repr(was), repr(now))
        self._options = overrides.apply(self._override, self._parts, saved[_OPTIONS], self._options)
