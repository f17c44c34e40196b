"""A state that all ranks share, cut in two: the tensors that one rank writes for all, and what each rank keeps for itself.

Shared are the tensors of model parameters, optimizers and schedules and of further objects. A rank keeps its generators, its loaders,
gradients, the model's buffers (batch statistics differ between ranks) and the objects that are named so. The tree of the whole
state goes with what the rank keeps; in the place of a shared tensor it has that tensor's number.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from recovery.errors import CheckpointManifestError, CheckpointStateError
from recovery.torch import fingerprint, mapped_file, module_names
from recovery.torch.host_copy import copied_to_host
from recovery.torch.passes import Passes

_FORMAT = 1
_PART, _SIDE = "part", "side"
_MARK = "recovery.shared_tensor"
_STRIDED = (torch.Tensor, torch.nn.Parameter)


def kept_by_each(parts: Mapping[str, Sequence[Any]], per_rank: Iterable[str]) -> Callable[[str, str], bool]:
    """Given a part and an entry of its state: does every rank keep it for itself?

    Args:
        parts: objects by part, without wrappers.
        per_rank: names of parts that each rank keeps whole.
    """
    whole = set(per_rank)
    buffers: set[tuple[str, str]] = set()
    for name, items in parts.items():
        if any(isinstance(item, Passes) for item in items):
            whole.add(name)
        for item in items:
            if isinstance(item, torch.nn.Module):
                named = dict(item.named_parameters(remove_duplicate=False))
                trained = set(module_names.plain_names(named).values())
                buffers.update((name, key) for key in module_names.state_of(item) if key not in trained)
    return lambda part, key: part in whole or (part, key) in buffers


class SharedPieces:
    """What one rank writes of a state as it was when this was made."""

    def __init__(
        self, payload: Mapping[str, Any], kept: Callable[[str, str], bool], *, rank: int, world_size: int
    ) -> None:
        """Copy the rank's share of the state, and compute what tells it from another history's.

        `kept`, given the name of a part and of an entry of its state, says whether every rank keeps that for itself.

        Raises:
            CheckpointStateError: it holds a tensor that is spread over ranks already.

        Cost: reads all shared tensors once, copies the share and what the rank keeps.
        """
        shared = _Shared()
        parts = {name: shared.part(name, states, kept) for name, states in payload["parts"].items()}
        self.fingerprints = fingerprint.of_parts(shared.trees)
        """SHA-256 by part."""
        self.replicated = fingerprint.joined(self.fingerprints)
        """SHA-256 of the state that all ranks share."""
        owner = owners(shared.storage_bytes, world_size)
        mine = {
            number: tensor
            for number, tensor in shared.tensors.items()
            if owner[shared.storage[number]] == rank
        }
        # Copied together: what shares a storage still does.
        self._part = copied_to_host(mine)
        side = {
            "format": _FORMAT,
            "holds": _SIDE,
            "kept": shared.kept,
            "fingerprints": self.fingerprints,
            "tensors": len(shared.tensors),
            "state": {**payload, "parts": parts},
        }
        self._side = copied_to_host(side)

    def write_part(self, stream: BinaryIO) -> None:
        """Write the tensors that this rank writes for all."""
        torch.save({"format": _FORMAT, "holds": _PART, "tensors": self._part}, stream)

    def write_side(self, stream: BinaryIO) -> None:
        """Write what only this rank has, and the tree of the whole state."""
        torch.save(self._side, stream)


class _Shared:
    """The shared tensors of a state, numbered in the order in which its tree has them."""

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self.storage: dict[int, int] = {}
        """Number of the storage, by number of the tensor."""
        self.storage_bytes: dict[int, int] = {}
        self.kept: list[tuple[str, str]] = []
        """Part and entry of what a rank keeps for itself."""
        self.trees: dict[str, Any] = {}
        """What is shared, by part; where a rank keeps something for itself there is nothing."""
        self._numbers: dict[tuple[torch.device, int], int] = {}

    def part(self, name: str, states: Sequence[Any], kept: Callable[[str, str], bool]) -> list[Any]:
        """The trees of a part, with numbers in the place of its shared tensors."""
        cut: list[Any] = []
        trees: list[Any] = []
        for state in states:
            if type(state) not in (dict, OrderedDict):
                state = {"": state}  # noqa: PLW2901 - one case for both below
            own = {key for key in state if kept(name, str(key))}
            self.kept.extend((name, str(key)) for key in own)
            trees.append({key: entry for key, entry in state.items() if key not in own})
            numbered = copy.copy(state)
            for key, entry in state.items():
                if key not in own:
                    numbered[key] = self._number(entry, name)
            cut.append(numbered if set(state) != {""} else numbered[""])
        if any(trees):
            self.trees[name] = trees
        return cut

    def _number(self, value: Any, part: str) -> Any:
        if type(value) in (dict, OrderedDict):
            # With its attributes: a module's state has versions beside it.
            numbered = copy.copy(value)
            for key, entry in value.items():
                numbered[key] = self._number(entry, part)
            return numbered
        if type(value) in (list, tuple):
            return type(value)(self._number(item, part) for item in value)
        if isinstance(value, torch.Tensor):
            return self._add(value, part)
        return value

    def _add(self, tensor: torch.Tensor, part: str) -> tuple[str, int]:
        if type(tensor) not in _STRIDED or tensor.layout is not torch.strided or tensor.is_quantized:
            raise CheckpointStateError(
                field=part,
                reason=f"it holds a {type(tensor).__name__} ({tensor.layout}), and only plain tensors can be shared by ranks",
                next_step=f"Name it in TrainState(per_rank=[{part!r}]), or use another layout than 'shared'.",
            )
        tensor = tensor.detach()
        storage = tensor.untyped_storage()
        place = self._numbers.setdefault((tensor.device, storage.data_ptr()), len(self._numbers))
        self.storage_bytes[place] = storage.nbytes()
        number = len(self.tensors)
        self.tensors[number], self.storage[number] = tensor, place
        return _MARK, number


def fingerprints_of(side: Path) -> dict[str, str]:
    """What the fingerprints of a rank's parts were, by name; empty where the file cannot be read."""
    try:
        return dict(torch.load(side, map_location="cpu", weights_only=True)["fingerprints"])
    except Exception:  # noqa: BLE001 - torch raises half a dozen types for what is no file of ours
        return {}


def join(side: Path, parts: Sequence[Path], replicated: str) -> dict[str, Any]:
    """Put a state together again from a rank's own file and every rank's verified part; nothing is loaded into any object yet.

    Raises:
        CheckpointManifestError: they do not belong together: a tensor is missing or twice there, or they are not the shared state whose
            fingerprint is `replicated`.
    """
    own = _loaded(side, _SIDE)
    tensors: dict[int, torch.Tensor] = {}
    for path in parts:
        for number, tensor in _loaded(path, _PART)["tensors"].items():
            if number in tensors:
                raise CheckpointManifestError(
                    path=path, reason=f"it has tensor {number}, as another rank's part has"
                )
            tensors[number] = tensor
    missing = sorted(set(range(own["tensors"])) - set(tensors))
    if missing or len(tensors) != own["tensors"]:
        reason = f"the ranks' parts hold {len(tensors)} tensors of {own['tensors']}, without {missing[:3]}"
        raise CheckpointManifestError(path=side, reason=reason)
    payload = dict(own["state"])
    payload["parts"] = {name: _filled(states, tensors) for name, states in payload["parts"].items()}
    # As it was saved: what the program shares today may be more or less.
    shared, kept = _Shared(), {tuple(pair) for pair in own["kept"]}
    for name, states in payload["parts"].items():
        shared.part(name, states, lambda part, key: (part, key) in kept)
    if fingerprint.joined(fingerprint.of_parts(shared.trees)) != replicated:
        raise CheckpointManifestError(
            path=side, reason="the ranks' parts together are not the state that was saved"
        )
    return payload


def _loaded(path: Path, holds: str) -> dict[str, Any]:
    try:
        loaded = mapped_file.load(path)
    except Exception as error:
        # torch raises half a dozen types for what is no file of ours.
        raise CheckpointManifestError(path=path, reason=f"it cannot be loaded ({error})") from error
    if not isinstance(loaded, dict) or (loaded.get("format"), loaded.get("holds")) != (_FORMAT, holds):
        raise CheckpointManifestError(path=path, reason=f"it is no {holds} of a shared state of this release")
    return loaded


def _filled(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            value[key] = _filled(item, tensors)
        return value
    if type(value) is tuple and len(value) == 2 and value[0] == _MARK:  # noqa: PLR2004 - mark and number
        return tensors[value[1]]
    if type(value) in (list, tuple):
        return type(value)(_filled(item, tensors) for item in value)
    return value


def owners(storage_bytes: Mapping[int, int], world_size: int) -> dict[int, int]:
    """Give each storage, by its number, to the rank that has the fewest bytes so far, the largest storages first.

    A pure function of what is the same on all ranks, so that no rank has to ask another. No rank has more than the mean and the largest storage together.
    """
    loads = [0] * world_size
    owner: dict[int, int] = {}
    for number, size in sorted(storage_bytes.items(), key=lambda item: (-item[1], item[0])):
        rank = loads.index(min(loads))
        owner[number] = rank
        loads[rank] += size
    return owner
