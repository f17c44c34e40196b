"""What a loop has received of a pass of a stream, as a digest: where the stream is drawn again, it shows whether it has given the same.

No code of the user's is asked whether its stream repeats, and nobody else knows. One that does not would give samples twice, and others never.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from recovery.errors import CheckpointStateError

_logger = logging.getLogger("recovery.torch")

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_ELEMENTS_MAX = 16_384
"""Of a tensor, evenly spread: batches of images have a hundred million bytes, and each is looked at in the step that it is for."""
_DEEP = 6
"""Containers inside each other; what is in further ones counts by its type."""


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Received:
    """Of the pass under way."""

    def __init__(self, digest: str = "") -> None:
        """Go on from a digest that was saved; empty: nothing was received, or nobody knows what."""
        self.digest = digest
        """SHA-256 (hex) of all batches in their order: of tensors and arrays on the host shape, type and content, else what a safe `repr` says."""

    def draw_again(
        self, batches: Iterator[Any], count: int, *, of: str, field: str = "loader"
    ) -> Iterator[Any]:
        """Draw what was received, drop it, and give what follows; arguments and errors are those of `compared`."""
        batches = self.compared(batches, count, of=of, field=field)
        for _ in range(count):
            next(batches)
        return batches

    def compared(
        self, batches: Iterator[Any], count: int, *, of: str, field: str = "loader"
    ) -> Iterator[Any]:
        """Give all of a pass that is drawn again, and compare what was received, with its last batch.

        Args:
            batches: of the pass, from its begin.
            count: how many were received; 0: the pass begins.
            of: which pass of what, for people.
            field: where the user has given it.

        Raises:
            CheckpointStateError: there are fewer, or they are not those that were received.
        """
        before, self.digest = self.digest, ""
        return itertools.chain(
            self._again(self._noted(batches), count, before, of, field), self._noted(batches)
        )

    def _again(self, batches: Iterator[Any], count: int, before: str, of: str, field: str) -> Iterator[Any]:
        for number in range(1, count + 1):
            batch = next(batches, self)
            if batch is self:
                raise CheckpointStateError(
                    field=field,
                    reason=f"{of} ended before batch {count}, where the checkpoint stands",
                    next_step="Give the data that the checkpoint was made with.",
                )
            if number == count:
                self._compare(before, count, of, field)
            yield batch

    def _compare(self, before: str, count: int, of: str, field: str) -> None:
        if not before:
            _logger.info(
                "event=stream_not_compared batches=%d of %s were drawn again, and what this rank had received is known nowhere (a file of an earlier release,"
                " or a rank that live rollback has replaced)",
                count,
                of,
            )
        elif before != self.digest:
            raise CheckpointStateError(
                field=field,
                reason=f"{of} does not repeat itself: drawn again, its first {count} batches are not those that the loop has received, so that samples"
                " would be used twice, and others never",
                next_step="Let what it draws follow from torch's, numpy's or Python's own generators, or from set_epoch; or, for a ResumableLoader, give it"
                " state_dict and load_state_dict, which are used instead. A checkpoint between two epochs fits as it is.",
            )

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            sha256 = hashlib.sha256(self.digest.encode())
            _add(sha256, batch, _DEEP)
            self.digest = sha256.hexdigest()
            yield batch


def _add(to: _Hash, value: Any, deep: int) -> None:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        _add_tensor(to, value)
    elif kind in _PLAIN or _is_of_numpy(value, "generic"):
        to.update(repr(value).encode(errors="backslashreplace"))
    elif _is_of_numpy(value, "ndarray"):
        to.update(f"{value.dtype} {value.shape}".encode())
        some = value.reshape(-1)[:: _stride(value.size)]
        to.update(repr(some.tolist()).encode() if value.dtype.hasobject else some.tobytes())
    else:
        to.update(f"{kind.__qualname__}(".encode())
        for name, inner in _inside(value) if deep else ():
            to.update(f"{name!r}:".encode(errors="backslashreplace"))
            _add(to, inner, deep - 1)
        to.update(b")")


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a container or an object of the user's holds, each with a name that any process gives it."""
    if isinstance(value, Mapping):
        yield from ((key if type(key) in _PLAIN else type(key), inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    else:
        yield from getattr(value, "__dict__", {}).items()


def _add_tensor(to: _Hash, tensor: torch.Tensor) -> None:
    to.update(f"{tensor.dtype} {() if tensor.is_nested else tuple(tensor.shape)}".encode())
    # To read from a device would wait for it.
    if (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_quantized or tensor.is_nested)
    ):
        flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
        some = flat[:: _stride(flat.numel())].contiguous()
        to.update(some.view(torch.uint8).numpy().tobytes())


def _stride(elements: int) -> int:
    """Odd, so that not always the same place of rows is looked at."""
    return 1 if elements <= _ELEMENTS_MAX else elements // _ELEMENTS_MAX | 1


def _is_of_numpy(value: Any, name: str) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, name))
