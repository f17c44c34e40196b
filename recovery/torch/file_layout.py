"""The file that torch.save would write, laid out in memory: everything but the tensors' bytes, and where those belong.

torch itself lays it out (`torch.serialization.skip_data` leaves holes for the data), so the format is torch's in every release. In place of
each tensor's CRC-32 stands that of nothing: torch.load does not look at it, and the SHA-256 of the whole file covers every byte.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import pickle  # noqa: TID251 - torch.save's own writer, which is listened to; nothing is read with it
import types
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import torch
from typing_extensions import override

from recovery.checkpoint.staging_buffer import Mapping
from recovery.training.state import CannotLayOutError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_logger = logging.getLogger("recovery.torch")

_PIECE = 16 * 2**20
"""Bytes that a comparison takes on a device."""
_STORAGES = (torch.storage.TypedStorage, torch.UntypedStorage)


class FileLayout:
    """A file that is not written yet."""

    def __init__(self, payload: object) -> None:
        """Lay out what torch.save would write of `payload`. Tensors are not read.

        Raises:
            CannotLayOutError: the holes that torch leaves are not those of the tensors that were seen.
        """
        outline = _Outline()
        storages = _Storages()
        with torch.serialization.skip_data():
            torch.save(payload, cast("IO[bytes]", outline), pickle_module=storages.as_pickle_module())
        # torch.save leaves a class of its own behind, in a circle with all that it has met: gradients that are cleared next would stay.
        gc.collect(1)
        self.size = outline.end
        self._pieces = outline.pieces
        self._storages = storages.hand_over()
        """Of all tensors, each once, in the order of the file. An empty one has no place in it."""
        self._offsets = [offset for offset, _ in outline.holes]
        self._sizes = [size for _, size in outline.holes]
        if outline.goes_back or self._sizes != [storage.nbytes() for storage in self._storages]:
            reason = f"torch.save leaves {len(self._sizes)} holes that are not those of the {len(self._storages)} tensors that were seen"
            raise CannotLayOutError(reason)

    def copy_to(self, memory: memoryview) -> None:
        """Copy everything to where it belongs in at least `size` bytes; tensors of a device arrive before this returns."""
        for offset, piece in self._pieces:
            memory[offset : offset + len(piece)] = piece
        if any(storage.device.type == "cuda" for storage in self._storages):
            pin(memory)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        devices = set()
        for offset, storage in zip(self._offsets, self._storages, strict=True):
            whole[offset : offset + storage.nbytes()].copy_(_bytes_of(storage), non_blocking=True)
            devices.add(storage.device)
        for device in devices:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)

    def differs_from(self, memory: memoryview) -> bool:
        """Are the tensors' bytes of now others than those that `copy_to` has put there?"""
        return self._differ(memory, self._storages)

    def _differ(self, memory: memoryview, storages: Sequence[torch.UntypedStorage]) -> bool:
        """Are the bytes of these storages, in this layout's order, others than those in its memory?"""
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        return not all(
            torch.equal(here.to(there.device), there)
            for offset, storage in zip(self._offsets, storages, strict=True)
            for here, there in _pieces(whole[offset : offset + storage.nbytes()], _bytes_of(storage))
        )

    def let_go(self) -> None:
        """Hold no tensor any more: gradients that a loop clears would lie on their device until the file is written."""
        self._storages = []

    def is_read_from(self, path: Path, memory: memoryview) -> bool:
        """Does torch.load give tensors whose bytes are those in `memory`, each where this layout has it?

        Raises:
            Exception: torch.load refuses the file; it raises half a dozen types.
        """
        # Where its tensors would lie in a file of its own says nothing: what was on a device is on the CPU now, which is written shorter.
        loaded = FileLayout(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
        return [storage.nbytes() for storage in loaded._storages] == self._sizes and not self._differ(
            memory, loaded._storages
        )


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _pieces(here: torch.Tensor, there: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Of what lies on a device: compared there, so little of it at a time that a full device has room; else the whole."""
    if there.device.type == "cpu":
        return iter([(here, there)])
    return zip(torch.split(here, _PIECE), torch.split(there, _PIECE), strict=True)


class _Outline(io.RawIOBase):
    """Takes what torch.save writes, and notes the holes that it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0
        self.pieces: list[tuple[int, bytes]] = []
        """Offset and content of what is no tensor."""
        self.holes: list[tuple[int, int]] = []
        """Offset and size of what is left for tensors."""
        self.goes_back = False

    @property
    def end(self) -> int:
        return self._position

    @override
    def writable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        # torch would make another error of one that is raised here.
        self.goes_back = self.goes_back or whence == io.SEEK_END or target < self._position
        if target > self._position:
            self.holes.append((self._position, target - self._position))
        self._position = target
        return target

    @override
    def write(self, data: ReadableBuffer, /) -> int:
        taken = bytes(memoryview(data).cast("B"))
        self.pieces.append((self._position, taken))
        self._position += len(taken)
        return len(taken)


class _Storages:
    """The storages that torch.save meets, in its order: it numbers each at the tensor in which it meets it first."""

    def __init__(self) -> None:
        self.found: list[torch.UntypedStorage] = []
        self._seen: set[int] = set()

    def as_pickle_module(self) -> Any:
        """What torch.save takes as its `pickle_module`."""
        storages = self

        class Pickler(pickle.Pickler):
            def __init__(self, *args: Any, **options: Any) -> None:
                of_torch = self.persistent_id

                def of_storages(obj: Any) -> Any:
                    return of_torch(obj) if isinstance(obj, _STORAGES) else None

                # It is called for every key and number of the state: torch's own was a third of the time of a layout.
                self.persistent_id = of_storages  # type: ignore[method-assign]  # the C pickler asks its instance
                super().__init__(*args, **options)

            @override
            def reducer_override(self, obj: Any) -> Any:
                if isinstance(obj, torch.Tensor):
                    storages.note(obj)
                return NotImplemented

        module = types.ModuleType("recovery_archive")
        module.Pickler = Pickler  # type: ignore[attr-defined]  # a module made here has what it is given
        return module

    def hand_over(self) -> list[torch.UntypedStorage]:
        """All that were met. None is held here: the class above stays until Python's collector comes by, and with it this."""
        found, self.found = self.found, []
        return found

    def note(self, tensor: torch.Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            # A sparse tensor is made of others, which come next.
            return
        key = cast("int", storage._cdata)  # noqa: SLF001 - what torch.save itself tells storages apart by
        if key not in self._seen:
            self._seen.add(key)
            if storage.nbytes():
                self.found.append(storage)


def pin(memory: memoryview) -> None:
    """Let the driver hold kept memory where it is, for as long as it is kept, so that a CUDA device copies into it by itself. It is asked once.

    Into memory that the system may move, each piece goes through a small buffer of the driver: on an H200 1.9 GB arrive in 147 ms, else in 37
    (benchmarks/README.md). Where it refuses, copies go on as they went without it.
    """
    mapped = memory.obj
    if not isinstance(mapped, Mapping) or mapped.before_unmap is not None:
        return
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    code = int(_driver().cudaHostRegister(address, len(memory), 0))
    mapped.before_unmap = partial(_let_go, address, os.getpid(), is_pinned=not code)
    if code:
        text = "copies from the device go through the driver's buffer"
        _logger.warning("event=memory_not_pinned code=%d %s", code, text)
        _clear_error()


def _let_go(address: int, pid: int, *, is_pinned: bool) -> None:
    # A fork has the memory, and no driver.
    if is_pinned and pid == os.getpid() and int(_driver().cudaHostUnregister(address)):
        _clear_error()


def _driver() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch ships it without types


def _clear_error() -> None:
    """The driver's refusal would be taken for one of the next kernel: this one takes it."""
    with contextlib.suppress(Exception):
        torch.zeros(1, device="cuda")
