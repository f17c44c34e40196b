"""A state is put back, and then compared with the file that it came from.

A framework's `load_state_dict` may change what it is given: torch's optimizers turn what belongs to a parameter into that parameter's dtype
(`Optimizer._process_value_according_to_param_policy`), so the product that NAdam keeps in fp32 comes back in fp64, and a copy in fp32
of bf16 weights in bf16; a module copies a file's fp32 into bf16 weights. Training then goes on with other bits, and nobody is told.

Of what torch's own code loads the values are known once dtypes, shapes and memory that is shared agree. Any other object's are compared bit by
bit, once in a process for each class.
"""

from __future__ import annotations

import copy
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from recovery.errors import CheckpointStateError
from recovery.torch import mapped_file, module_names, spread
from recovery.torch.gradients import trained_by
from recovery.torch.host_copy import tensors_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_WORD_BYTES = 8
_Taken = TypeVar("_Taken")
_compared: set[type] = set()
"""Classes whose values were compared in this process."""

Difference = tuple[str, str]
"""Where in a state, and what is other there."""


def load(name: str, items: Sequence[Any], states: Sequence[Any]) -> None:
    """Load the states of one part, one for each item, under plain names. What an object may keep of them is its own.

    Raises:
        CheckpointStateError: there are more or fewer, or an object refuses what it is given.
    """
    if len(items) != len(states):
        raise unfit(name, f"the checkpoint holds {len(states)} of them, here are {len(items)}")
    for item, state in zip(items, states, strict=True):
        try:
            item.load_state_dict(module_names.as_named_by(item, state))
        except CheckpointStateError:
            raise
        except Exception as error:
            # Foreign objects raise anything at a state that is not theirs.
            raise unfit(name, f"{type(error).__name__}: {error}") from error
        if isinstance(item, torch.optim.Optimizer) and _first_difference(item, state) is not None:
            _put_back(item, state)


def taken(kind: str, take: Callable[[], _Taken]) -> _Taken:
    """Have a loader or a data set of the class `kind` take its position.

    Raises:
        CheckpointStateError: it raises whatever it raises at a state that is not its own.
    """
    try:
        return take()
    except CheckpointStateError:
        raise
    except Exception as error:
        raise unfit(
            "loader", f"{kind} does not take its position: {type(error).__name__}: {error}"
        ) from error


def check(parts: Mapping[str, Sequence[Any]], saved: Mapping[str, Sequence[Any]]) -> None:
    """Compare what was loaded with what was saved, when all of it was loaded: one object may have changed another's.

    Raises:
        CheckpointStateError: something differs; says what and where.
    """
    for name, items in parts.items():
        for number, (item, state) in enumerate(zip(items, saved[name], strict=True)):
            found = _first_difference(item, state)
            if found is not None:
                where, reason = found
                raise unfit(
                    f"{name}[{number}]{where}" if len(items) > 1 else f"{name}{where}",
                    f"{type(item).__name__}.load_state_dict has not put back what was saved: {reason}",
                )
    _compared.update(type(item) for items in parts.values() for item in items)


def unfit(field: str, reason: str) -> CheckpointStateError:
    """The error of a checkpoint that cannot become the state of these objects."""
    return CheckpointStateError(
        field=field,
        reason=reason,
        next_step="Build the same parts as the program that saved, or choose another MS_RECOVERY_PATH.",
    )


def _first_difference(item: Any, saved: Any) -> Difference | None:
    now = module_names.state_of(item)
    by_bits = type(item) not in _compared and not _is_loaded_by_torch(item)
    return next(_Comparison(now, by_bits=by_bits).differences(saved, now, ""), None)


def _is_loaded_by_torch(item: Any) -> bool:
    if isinstance(item, torch.optim.Optimizer):
        return str(type(item).load_state_dict.__module__).startswith("torch.optim.")
    return mapped_file.copies(item)


class _Comparison:
    """Of one object's state with its file."""

    def __init__(self, now: Any, *, by_bits: bool) -> None:
        """Compare every tensor's values, or only those of which several lie in the same memory: the last was written over the others."""
        self._by_bits = by_bits
        counted = Counter(map(_memory, tensors_of(now)))
        self._shared = {memory for memory, count in counted.items() if count > 1}

    def differences(self, saved: Any, now: Any, where: str) -> Iterator[Difference]:
        """What was saved and is not there, or is there as something else. What is there besides was no part of the file."""
        if isinstance(saved, torch.Tensor):
            yield from self._of_tensors(saved, now, where)
        elif isinstance(saved, dict):
            if not isinstance(now, dict):
                yield where, f"it was a {type(saved).__name__} and is a {type(now).__name__}"
                return
            for key, entry in saved.items():
                inner = f"[{key!r}]"
                if key in now:
                    yield from self.differences(entry, now[key], where + inner)
                else:
                    yield where + inner, "it is missing"
        elif isinstance(saved, (list, tuple)):
            if not isinstance(now, (list, tuple)) or len(saved) != len(now):
                yield where, f"it was {_shown(saved)} and is {_shown(now)}"
                return
            for position, (entry, other) in enumerate(zip(saved, now, strict=True)):
                yield from self.differences(entry, other, f"{where}[{position}]")
        elif not _same_value(saved, now):
            yield where, f"it was {_shown(saved)} and is {_shown(now)}"

    def _of_tensors(self, saved: torch.Tensor, now: Any, where: str) -> Iterator[Difference]:
        if not isinstance(now, torch.Tensor):
            yield where, f"it was {_shown(saved)} and is {_shown(now)}"
            return
        saved, now = spread.local(saved), spread.local(now)
        if (saved.dtype, saved.shape, saved.layout) != (now.dtype, now.shape, now.layout):
            yield where, f"it was {_shown(saved)} and is {_shown(now)}"
        elif (self._by_bits or _memory(now) in self._shared) and not _same_bits(saved, now):
            yield where, f"other values stand in it ({_shown(saved)})"


def _memory(tensor: torch.Tensor) -> object:
    """What tensors in the same memory have in common; None of one that is made of others, or empty."""
    tensor = spread.local(tensor)
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.device, tensor.untyped_storage().data_ptr()


def _put_back(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Give an optimizer its state as it was saved: in its own dtypes, with values that are no tensors as they were."""
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, trained_by(optimizer), strict=True):
        if number in saved["state"]:
            optimizer.state[parameter] = _as_saved(saved["state"][number], optimizer.state[parameter])


def _as_saved(saved: Any, loaded: Any) -> Any:
    if isinstance(saved, torch.Tensor):
        if not isinstance(loaded, torch.Tensor) or saved.dtype == loaded.dtype:
            return loaded
        return saved.to(loaded.device, copy=True)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        # Of the kind that was loaded: an optimizer's own entries may have defaults.
        changed = copy.copy(loaded)
        changed.update({key: _as_saved(entry, loaded[key]) for key, entry in saved.items() if key in loaded})
        return changed
    if type(saved) in (list, tuple) and type(loaded) is type(saved) and len(loaded) == len(saved):
        return type(saved)(_as_saved(entry, other) for entry, other in zip(saved, loaded, strict=True))
    return copy.deepcopy(saved)


def _same_bits(saved: torch.Tensor, now: torch.Tensor) -> bool:
    if saved.layout is not torch.strided or saved.is_quantized:
        # Made of other tensors, which torch.save writes one by one.
        return _written(saved) == _written(now)
    a, b = _words(saved), _words(now)
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Its bits as whole numbers: a NaN equals itself, and -0.0 is not 0.0."""
    flat = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if (flat.numel() * flat.element_size()) % _WORD_BYTES or (
        flat.storage_offset() * flat.element_size()
    ) % _WORD_BYTES:
        return flat.view(torch.uint8)
    return flat.view(torch.int64)


def _same_value(saved: Any, now: Any) -> bool:
    if type(saved) in _PLAIN:
        return type(saved) is type(now) and repr(saved) == repr(now)
    try:
        if bool(saved == now):
            return True
    except Exception:  # noqa: BLE001, S110 - an array has no truth, a foreign object raises anything
        pass
    return type(saved) is type(now) and _written(saved) == _written(now)


def _written(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    shown = repr(value)
    return shown if len(shown) < 60 else f"{shown[:57]}..."  # noqa: PLR2004 - for one line of an error
