"""Everything that decides the next step, in one object that can be saved and put back bit for bit."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.nn.parallel import DistributedDataParallel

from recovery.errors import CheckpointStateError, UsageError
from recovery.torch.loader import ResumableLoader
from recovery.torch.random_state import capture_random_state, restore_random_state

_FORMAT = 1


class TrainState:
    """Model, optimizer, schedules, loaders, anything with `state_dict` and `load_state_dict`, and the random generators.

    A list or tuple of such objects counts as one part. A model in DistributedDataParallel is saved without its wrapper.
    """

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        loader: ResumableLoader | None = None,
        **objects: Any,
    ) -> None:
        """Name the parts.

        Args:
            model: a module, in DistributedDataParallel or not, or a list of them.
            optimizer: one or a list.
            lr_scheduler: one or a list.
            loader: the one that `Session.steps` draws batches from.
            **objects: further parts by name: a second loader, a gradient scaler, running averages.

        Raises:
            UsageError: a part has no `state_dict` and `load_state_dict`.
        """
        given = {
            "model": model,
            "optimizer": optimizer,
            "lr_scheduler": lr_scheduler,
            "loader": loader,
            **objects,
        }
        self._parts = {name: part for name, part in given.items() if part is not None}
        self._loader = loader
        self._checked = False
        for name, part in self._parts.items():
            for item in _items(part):
                if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                    raise UsageError(
                        field=name,
                        reason=f"{type(item).__name__} has no state_dict and load_state_dict",
                        next_step="Give an object that has both, or leave it out.",
                    )

    @property
    def batches(self) -> Iterable[Any]:
        """The loader that `Session.steps` draws from.

        Raises:
            UsageError: none was given.
        """
        if self._loader is None:
            raise UsageError(
                field="TrainState",
                reason="has no loader to draw batches from",
                next_step="Give loader=ResumableLoader(...).",
            )
        return self._loader

    def begin(self) -> None:
        """Nothing is loaded: everything stands as it was made."""

    def write(self, stream: BinaryIO) -> None:
        """Write the whole state with torch.save.

        Raises:
            CheckpointStateError: a part holds what a safe load (weights_only) refuses; found at the first save.
        """
        _Copy(self._take()).write(stream, check=not self._checked)
        self._checked = True

    def snapshot(self) -> _Copy:
        """Copy the state, tensors included, so that a thread may write it while training goes on."""
        return _Copy(_copied(self._take()))

    def read(self, path: Path) -> None:
        """Load a file that `write` made. The random generators come last: everything before them may draw.

        Raises:
            CheckpointStateError: the file does not fit these parts.
        """
        try:
            payload = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises half a dozen types for what is no file of ours
            raise _unfit(str(path), f"cannot be loaded ({error})") from error
        parts = payload["parts"]
        if set(parts) != set(self._parts):
            missing, extra = sorted(set(self._parts) - set(parts)), sorted(set(parts) - set(self._parts))
            reason = f"the checkpoint lacks {missing or 'nothing'} and has {extra or 'nothing'} besides"
            raise _unfit("TrainState", reason)  # noqa: EM101 - a field, no message
        for name, part in self._parts.items():
            items = _items(part)
            if len(items) != len(parts[name]):
                raise _unfit(name, f"the checkpoint holds {len(parts[name])} of them, here are {len(items)}")
            for item, state in zip(items, parts[name], strict=True):
                try:
                    _bare(item).load_state_dict(state)
                except (KeyError, RuntimeError, ValueError) as error:
                    raise _unfit(name, str(error)) from error
        for part in self._parts.values():
            for item in _items(part):
                if isinstance(item, ResumableLoader):
                    item.prime()
        restore_random_state(payload["random"])

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return {"torch": str(torch.__version__)}

    def _take(self) -> dict[str, Any]:
        parts = {
            name: [_bare(item).state_dict() for item in _items(part)] for name, part in self._parts.items()
        }
        return {"format": _FORMAT, "parts": parts, "random": capture_random_state()}


class _Copy:
    """A state as it was taken."""

    def __init__(self, payload: Mapping[str, Any]) -> None:
        self._payload = dict(payload)

    def write(self, stream: BinaryIO, *, check: bool = False) -> None:
        if check:
            self._check()
        torch.save(self._payload, stream)

    def _check(self) -> None:
        """Would a safe load take it? Asked once, at the first save, when there is still time to change the program."""
        for name, states in self._payload["parts"].items():
            buffer = io.BytesIO()
            try:
                torch.save(states, buffer)
                buffer.seek(0)
                torch.load(buffer, weights_only=True)
            except Exception as error:
                raise CheckpointStateError(
                    field=name,
                    reason=f"its state_dict holds what a safe load (weights_only=True) refuses: {str(error).splitlines()[0]}",
                    next_step="Keep only tensors, numbers, text, lists and dicts in it.",
                ) from error


def _items(part: Any) -> list[Any]:
    return list(part) if isinstance(part, (list, tuple)) else [part]


def _bare(item: Any) -> Any:
    return item.module if isinstance(item, DistributedDataParallel) else item


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(inner) for inner in value)
    return value


def _unfit(field: str, reason: str) -> CheckpointStateError:
    return CheckpointStateError(
        field=field,
        reason=reason,
        next_step="Build the same parts as the program that saved, or choose another MS_RECOVERY_PATH.",
    )
