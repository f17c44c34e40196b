"""A copy of a state whose tensors lie in the host's memory, wherever those of the state lie: a copy beside them would need a device twice as large."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

import torch

Tree = TypeVar("Tree")


def _is_on_a_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta")


class HostCopy:
    """A state as it was when this was made, so that a thread may write it while training goes on."""

    def __init__(self, state: Any) -> None:
        """Copy it."""
        self._state = copied_to_host(state)

    def write(self, stream: BinaryIO) -> None:
        """Write it with torch.save."""
        torch.save(self._state, stream)


def copied_to_host(tree: Tree, *, lies_elsewhere: Callable[[torch.Tensor], bool] = _is_on_a_device) -> Tree:
    """Copy everything: dicts, lists and tuples of tensors and of what can be copied. What shares a storage still does.

    A tensor of which `lies_elsewhere` says so is brought to the host; the others are copied where they are.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    memo: dict[int, Any] = {}
    for tensor in tensors_of(tree):
        if id(tensor) in memo or not _is_plain(tensor) or not lies_elsewhere(tensor):
            continue
        storage = tensor.untyped_storage()
        # What torch.save itself tells storages apart by.
        key: int = storage._cdata  # noqa: SLF001 - it has no public name
        if key not in storages:
            storages[key] = _brought(storage)
        here = torch.empty(0, dtype=tensor.dtype)
        memo[id(tensor)] = here.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())
    return copy.deepcopy(tree, memo)


def _brought(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    here = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]  # torch ships it without types
    here.copy_(storage, non_blocking=False)
    return here


def _is_plain(tensor: torch.Tensor) -> bool:
    """Is it all that its storage, its shape and its strides say? A tensor that is spread, sparse or quantised is copied as it is."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return False
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def tensors_of(tree: object) -> Iterator[torch.Tensor]:
    """Of a tree of dicts, lists and tuples, as often as it has them."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for inner in tree.values():
            yield from tensors_of(inner)
    elif isinstance(tree, (list, tuple)):
        for inner in tree:
            yield from tensors_of(inner)
