"""One rank gives a tree of tensors and plain values to the others that need it, over the world that has just been formed.

First the header (live_header.py), as bytes. Then the bytes of all tensors in the header's order, in pieces of at most 64 MiB: small
tensors share a piece, which is put together in memory of its own; a large one goes from and to where it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed

from recovery.torch import live_header
from recovery.torch.live_header import Packed, TensorNote

_PIECE_BYTES = 64 * 2**20
"""Of one broadcast: large enough for the wire, small beside a model. Twice as much gains nothing measurable."""


class _Span(NamedTuple):
    """Bytes of one tensor."""

    tensor: int
    begin: int
    end: int


def give(wire: Wire, packed: Packed) -> None:
    """On the source: send it."""
    header = torch.frombuffer(bytearray(packed.header), dtype=torch.uint8)
    wire.broadcast_length(len(packed.header))
    wire.broadcast(header.to(wire.device))
    flats = [_bytes_of(tensor) for tensor in packed.tensors]
    for device, spans in _pieces(packed.notes, wire.types):
        if len(spans) == 1 and flats[spans[0].tensor].device.type == device.type:
            wire.broadcast(_cut(flats, spans[0]))
        else:
            wire.broadcast(torch.cat([_cut(flats, span).to(device) for span in spans]))


def take(wire: Wire, *, own: Mapping[str, torch.Tensor], device: torch.device, wanted: bool = True) -> Any:
    """On every other rank: receive it; None where it is not wanted, since this rank has the same already and only takes part.

    Tensors are written into those of `own`, by their path in the tree, where they fit; others that are on no CPU where they come from go to
    `device`.
    """
    header = wire.broadcast(
        torch.empty(wire.broadcast_length(0), dtype=torch.uint8, device=wire.device)
    ).cpu()
    content = bytes(header.numpy().tobytes())
    notes = live_header.read_notes(content)
    targets = [_target(note, own, device) for note in notes] if wanted else []
    with torch.no_grad():
        # Where bytes cannot be written to where they belong, they are when all of them are there.
        flats = [_bytes_of(target) for target in targets]
        for piece_device, spans in _pieces(notes, wire.types):
            if wanted and len(spans) == 1 and flats[spans[0].tensor].device.type == piece_device.type:
                wire.broadcast(_cut(flats, spans[0]))
                continue
            size = sum(span.end - span.begin for span in spans)
            piece = wire.broadcast(torch.empty(size, dtype=torch.uint8, device=piece_device))
            if wanted:
                parts = torch.split(piece, [span.end - span.begin for span in spans])
                for span, part in zip(spans, parts, strict=True):
                    _cut(flats, span).copy_(part)
        if not wanted:
            return None
        for target, flat in zip(targets, flats, strict=True):
            if target.numel() and flat.data_ptr() != target.data_ptr():
                target.copy_(flat.view(target.dtype).reshape(target.shape))
    return live_header.unpack(content, targets)


class Wire:
    """What goes from one rank to all, or to those that hold the same as it."""

    def __init__(
        self, source: int, replicas: Sequence[int] = (), group: distributed.ProcessGroup | None = None
    ) -> None:
        """A collective of the ranks that it connects: `replicas`, the source among them; empty: all ranks.

        `group` is theirs, where there is one: one that is made here has its name by how many groups this rank is in already, so it needs ranks that
        have made the same ones.
        """
        self._source = source
        if replicas and group is None:
            group = distributed.new_group(list(replicas), use_local_synchronization=True)
        self._group = group
        self.types = _types_of_world()
        self.device = wire_device()

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """The source's, on every rank; the tensor is written into."""
        if tensor.numel():
            distributed.broadcast(tensor, self._source, group=self._group)
        return tensor

    def broadcast_length(self, length: int) -> int:
        """The source's."""
        return int(self.broadcast(torch.tensor([length], device=self.device)))


def _types_of_world() -> frozenset[str]:
    """On which devices tensors go out in it."""
    world = distributed.group.WORLD
    assert world is not None, "a world was formed"
    return frozenset(device.type for device in world._device_types)  # noqa: SLF001 - torch has no public name for it


def wire_device() -> torch.device:
    """Where a tensor must be to go out in this world, wherever it lay."""
    return _device("cpu" if "cpu" in _types_of_world() else "cuda")


def _pieces(notes: list[TensorNote], types: frozenset[str]) -> Iterator[tuple[torch.device, list[_Span]]]:
    """What goes in one broadcast, and on what device: the same on every rank."""
    fallback = "cpu" if "cpu" in types else "cuda"
    for name in sorted({note.device if note.device in types else fallback for note in notes}):
        device = _device(name)
        spans: list[_Span] = []
        free = _PIECE_BYTES
        for number, note in enumerate(notes):
            if (note.device if note.device in types else fallback) != name:
                continue
            begin = 0
            while begin < note.size:
                end = min(note.size, begin + free)
                spans.append(_Span(number, begin, end))
                free -= end - begin
                begin = end
                if free == 0:
                    yield device, spans
                    spans, free = [], _PIECE_BYTES
        if spans:
            yield device, spans


def _device(name: str) -> torch.device:
    return torch.device(name) if name == "cpu" else torch.device(name, torch.cuda.current_device())


def _target(note: TensorNote, own: Mapping[str, torch.Tensor], device: torch.device) -> torch.Tensor:
    mine = own.get(note.path)
    if mine is not None and note.fits(mine):
        return mine.detach()
    return note.empty(torch.device("cpu") if note.device == "cpu" else device)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes in the order of its shape: the tensor's own memory where that has this order, else a copy."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _cut(flats: list[torch.Tensor], span: _Span) -> torch.Tensor:
    return flats[span.tensor][span.begin : span.end]
