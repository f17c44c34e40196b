"""A file of torch.save, read where it lies: its tensors are the file, mapped, until somebody copies them.

A module copies what it is given into the parameters that it has, so its part of the file need not be read into fresh memory first: half of what
a restore cost. An object that keeps the tensors that it is given gets copies: a mapped file keeps its place on the disk after it was deleted, and a
page of it that cannot be read again ends the process.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_logger = logging.getLogger("recovery.torch")


def load(path: Path) -> Any:
    """Read a file whose digest was compared; nothing of it is copied. A file system that cannot map a file gives it to fresh memory.

    Raises:
        Exception: torch.load refuses it; it raises half a dozen types.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # noqa: BLE001 - torch raises half a dozen types, also for a file that cannot be mapped
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        _logger.info("event=not_mapped path=%s reason=%r it was read into memory", path, str(error))
        return loaded


def own(payload: Mapping[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Copy what these parts would keep out of a mapped file; what they only copy from stays in it. Storages that were shared still are.

    `payload` has each part's list of states under "parts"; `parts` are the objects, without wrappers, that they will be loaded into.
    """
    states = payload["parts"]
    kept = {name: states[name] for name in states if not all(map(copies, parts[name]))}
    # The random generators and the gradients copy what they are given.
    return {**payload, "parts": {**states, **copy.deepcopy(kept)}}


def copies(item: object) -> bool:
    """Does its `load_state_dict` copy every tensor that it is given? Known of torch's own modules, and of those made of them."""
    return (
        isinstance(item, torch.nn.Module)
        and _is_torchs(item, "load_state_dict")
        and all(
            _is_torchs(module, "_load_from_state_dict")
            and _is_torchs(module, "set_extra_state")
            and not _has_hooks(module)
            for module in item.modules()
        )
    )


def _is_torchs(module: torch.nn.Module, method: str) -> bool:
    return str(getattr(type(module), method).__module__).startswith("torch.nn.")


def _has_hooks(module: torch.nn.Module) -> bool:
    hooks = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
    # A release of torch that calls them otherwise: nobody knows.
    return any(getattr(module, name, True) for name in hooks)
