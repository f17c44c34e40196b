"""Buffers as they were at the last boundary.

DistributedDataParallel gives all ranks rank 0's buffers before each forward pass; then every rank changes its own. So what the job's
state needs is what rank 0 has, and rank 0 may die: where training changes such buffers, every rank keeps rank 0's
(mirrored_buffers.py). All others it copies from its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import distributed

from recovery.torch.buffer_changes import BufferChanges, Seen, differ
from recovery.torch.live_parts import Buffer
from recovery.torch.mirrored_buffers import MirroredBuffers


class KeptBuffers:
    """Copies of the buffers of one generation's state."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        *,
        mirrors: bool,
        known: Mapping[str, Sequence[str]] | None = None,
        given: Iterable[str] = (),
    ) -> None:
        """Begin a generation: what the buffers are now is what they have not changed from.

        Args:
            buffers: of the state.
            mirrors: a model of the state is in DistributedDataParallel, which gives rank 0's buffers to all.
            known: `mirrored()` of the generation whose state this one goes on with, the same on all ranks; None or empty: it is found at
                the first boundaries.
            given: names of the buffers in the state that this generation goes on with.
        """
        self._given = frozenset(given)
        self._changes = BufferChanges(buffers)
        self._world_size = distributed.get_world_size() if distributed.is_initialized() else 1
        self._mirrored: MirroredBuffers | None = None
        if mirrors and buffers and self._world_size > 1:
            self._mirrored = MirroredBuffers(self._changes, known=known or {})
        self._is_for_all = False
        """They are rank 0's, as it loaded them."""
        self._kept: list[torch.Tensor] = []
        self._seen: list[Seen] = []

    def kept(self) -> dict[str, torch.Tensor]:
        """As they were at the last boundary, by name: the copies themselves. Without those that each process has as it builds them."""
        return {
            buffer.name: copy
            for number, (buffer, copy) in enumerate(zip(self._changes.buffers, self._kept, strict=True))
            if buffer.persistent or buffer.name in self._given or self._has_changed(number)
        }

    def mirrored(self) -> dict[str, list[str]]:
        """Names of the buffers that rank 0 sends, by when; empty where that is not settled."""
        return {} if self._mirrored is None else self._mirrored.layout()

    def loaded(self, rank: int) -> None:
        """What the buffers are now is from a checkpoint of this rank, which rank 0's are what all ranks go on with."""
        self._is_for_all = rank == 0

    def before_step(self) -> None:
        """An optimizer is about to begin its first step behind a boundary. A collective where buffers are mirrored."""
        if self._mirrored is not None:
            self._mirrored.before_step()

    def before_boundary(self) -> None:
        """The first half of a boundary: what is left to send. It changes no copy, so that it may fail."""
        if self._mirrored is not None:
            self._mirrored.before_boundary()

    def before_callbacks(self) -> None:
        """Callbacks follow, behind a boundary, that may change buffers; then `boundary` without its first half."""
        if self._mirrored is not None:
            self._mirrored.before_callbacks()

    def boundary(self) -> None:
        """The second half: what the buffers are is what is kept."""
        now = self._changes.now()
        if not self._kept:
            self._kept = [tensor.detach().clone() for tensor, _ in now]
        else:
            if self._mirrored is not None:
                self._mirrored.boundary(now, self._kept)
            self._copy_own(now)
        self._seen = now

    def _copy_own(self, now: list[Seen]) -> None:
        old, new = [], []
        for number, seen in enumerate(self._seen):
            tensor = now[number].tensor
            if self._is_sent(number) or not (self._changes.always[number] or differ(seen, now[number])):
                continue
            if self._kept[number].shape == tensor.shape and self._kept[number].dtype == tensor.dtype:
                old.append(self._kept[number])
                new.append(tensor.detach())
            else:
                self._kept[number] = tensor.detach().clone()
        if old:
            torch._foreach_copy_(old, new)

    def why_not(self) -> str:
        """Why those of the last boundary are not what the job needs, one clause; empty: they are."""
        if self._world_size == 1:
            return ""
        for number, (buffer, kept) in enumerate(zip(self._changes.buffers, self._kept, strict=False)):
            # Counters are alike on every rank.
            if self._is_sent(number):
                if kept.shape != self._seen[number].tensor.shape:
                    return f"buffer {buffer.name} has another shape than when the ranks agreed that rank 0 sends it"
                continue
            if not kept.is_floating_point() or not self._has_changed(number):
                continue
            if not buffer.alike:
                return f"training changes buffer {buffer.name}, which every rank has for itself"
            if self._mirrored is not None and not self._is_for_all:
                return f"buffer {buffer.name} has changed, and had not in the first steps: the ranks have not agreed on it yet"
        return "" if self._mirrored is None else self._mirrored.why_not()

    def _has_changed(self, number: int) -> bool:
        return self._changes.since_begin(number, self._kept[number], self._seen[number])

    def _is_sent(self, number: int) -> bool:
        return self._mirrored is not None and number in self._mirrored
