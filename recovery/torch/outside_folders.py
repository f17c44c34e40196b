"""What the checkpoint of a framework lacks of modules and optimizers, kept beside it: for loops that save and load by themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from recovery.torch import module_names, outside_state_dict
from recovery.torch import payload as payloads
from recovery.torch.as_built import AsBuilt
from recovery.torch.beside import Beside
from recovery.torch.module_attributes import ModuleAttributes

_logger = logging.getLogger("recovery.torch")

Saved = Mapping[str, Sequence[Mapping[str, Any]]]
"""As `OutsideFolders.take` gives it."""
_OWN = "own"
"""Of an entry: tensors that differ between ranks, where a folder has one rank's."""
_DIFFER = (
    "event=weights_differ_between_ranks %d parameters (%s, ...) were frozen when DistributedDataParallel was made, which averages no gradients of them: "
    "each rank trains them apart, with and without recovery, and each rank's are kept. Freeze them behind that, with find_unused_parameters"
)


class OutsideFolders:
    """Of one training: `make_room`, the framework's own load and `put` where there is something saved, then `begin`, and `take` in each save."""

    def __init__(
        self,
        parts: Callable[[], outside_state_dict.Parts],
        *,
        frozen: Sequence[Sequence[str]] = (),
        is_whole: bool = False,
        beside: Beside | None = None,
    ) -> None:
        """Note what the program has built, before anything is loaded.

        Args:
            parts: gives modules, in their wrappers, and optimizers.
            frozen: by module the names of parameters that DistributedDataParallel averages no gradients of, since they were frozen when it was
                made: whoever trains them later has other weights on each rank.
            is_whole: the framework's checkpoint is each rank's own, and has these weights. The attributes of outermost modules are kept there as well.
            beside: of the training; what of it no checkpoint has is named.
        """
        self._parts, self._frozen, self._is_whole = parts, frozen, is_whole
        built = parts()
        self._built, self._attributes = AsBuilt(built), ModuleAttributes(built, has_roots=not is_whole)
        self._beside, self._is_restored = beside, False
        if beside is not None:
            beside.note_built()
        self._own: list[set[str]] = [set() for _ in frozen]
        self._versions: list[dict[str, int]] = []

    def take(self, *, is_compared: bool = True) -> dict[str, list[dict[str, Any]]]:
        """All of it, as it is now. Nothing is copied. What a start could not load is said once, if it `is_compared`.

        Raises:
            CheckpointStateError: it holds what a safe load (weights_only) refuses.
            UsageError: behind a restore, as for `begin`.
        """
        parts = self._parts()
        if self._beside is not None:
            self._beside.report()
        if is_compared:
            self._built.compare(parts)
        taken = outside_state_dict.take(parts, self._attributes)
        for entry, own in zip(taken.get("model", ()), self._take_own(), strict=False):
            entry.update({} if self._is_whole else {_OWN: own})
        for part, entries in taken.items():
            payloads.refuse_unsafe(part, entries)
        return taken

    def make_room(self, saved: Saved) -> None:
        """Add the parameter groups that training had added: before the framework loads its own.

        Raises:
            CheckpointStateError: as for `outside_state_dict.make_room`.
        """
        self._is_restored = True
        outside_state_dict.make_room(self._parts(), saved)

    def put(self, saved: Saved) -> None:
        """Put the rest back, when the framework has loaded its own."""
        parts = self._parts()
        outside_state_dict.put(parts, saved)
        entries = saved.get("model", ())
        for item, entry, known in zip(parts.get("model", ()), entries, self._own, strict=False):
            own, here = entry.get(_OWN, {}), _tensors(module_names.bare(item))
            known.update(own)
            for name in own.keys() & here.keys():
                self._put_own(here[name], own[name])

    def _put_own(self, tensor: torch.Tensor, saved: Mapping[str, Any]) -> None:
        with torch.no_grad():
            tensor.copy_(saved["value"])
        for optimizer, values in zip(self._optimizers(), saved["states"], strict=False):
            # The framework has loaded the same of another rank.
            here = optimizer.state.get(tensor, {})
            for name in here.keys() & values.keys():
                if isinstance(here[name], torch.Tensor):
                    here[name].copy_(values[name])
                else:
                    here[name] = values[name]

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [one for one in self._parts().get("optimizer", ()) if isinstance(one, torch.optim.Optimizer)]

    def begin(self) -> None:
        """Before the first step: say what cannot be kept.

        Raises:
            UsageError: a schedule was not given; behind a restore that is found at the first save.
        """
        parts = self._parts()
        outside_state_dict.report_unsaved(parts)
        if self._beside is not None:
            self._beside.note_generators()
            if not self._is_restored:
                self._beside.check()
        models = (_tensors(module_names.bare(item)) for item in parts.get("model", ()))
        self._versions = [
            {name: _version(here[name]) for name in names if name in here}
            for here, names in zip(models, self._frozen, strict=False)
        ]

    def _take_own(self) -> list[dict[str, Any]]:
        models = self._parts().get("model", ())
        taken: list[dict[str, Any]] = []
        for item, known, versions in zip(models, self._own, self._versions, strict=False):
            bare, parallel = module_names.bare(item), module_names.parallel(item)
            here = _tensors(bare)
            if parallel is not None:
                drifts = bool(versions) and versions.keys() <= known
                if not drifts and any(_version(here[name]) != was for name, was in versions.items()):
                    drifts = True
                    known.update(versions)
                    _logger.warning(_DIFFER, len(versions), next(iter(versions)))
                if drifts:
                    # By clipping their norm, gradients of others differ between ranks too: also of one that is trained only later.
                    known.update(name for name, tensor in here.items() if tensor.requires_grad)
                known.update(_unsent(parallel, here))
            taken.append({name: self._own_of(here[name]) for name in sorted(known & here.keys())})
        return taken

    def _own_of(self, tensor: torch.Tensor) -> dict[str, Any]:
        return {
            "value": tensor.detach(),
            "states": [dict(one.state.get(tensor, {})) for one in self._optimizers()],
        }


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch has no public name for it


def _unsent(parallel: DistributedDataParallel, here: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """What each rank has of its own: buffers that are not sent from rank 0 before the next forward pass, and what the wrapper leaves alone."""
    is_sent = parallel.will_sync_module_buffers()  # type: ignore[no-untyped-call]  # of torch
    sent = parallel.modules_buffers if is_sent else ()
    known, ignored = {*map(id, sent)}, {*map(module_names.plain, parallel.parameters_to_ignore)}
    for name, tensor in here.items():
        if id(tensor) not in known and (name in ignored or not isinstance(tensor, torch.nn.Parameter)):
            yield name


def _tensors(item: Any) -> dict[str, torch.Tensor]:
    named = {**dict(item.named_parameters()), **dict(item.named_buffers())}
    names = module_names.plain_names(named)
    return {names[name]: tensor for name, tensor in named.items()}
