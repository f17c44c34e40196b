"""The ways to save a state that are compared: each gives the training back after its stall, and says when the save is durable."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from recovery.checkpoint import names
from recovery.checkpoint.contribution import Layout, Manifest, ManifestFile
from recovery.checkpoint.publish import Content, StagedCheckpoint, WrittenContent, stage
from recovery.torch import TrainState
from recovery.training import shared_layout, shared_names
from recovery.training.capture import StagingBuffer

Durable = Callable[[], None]
"""Waits until the save is on disk, as far as this way ever puts it there."""


class Way(Protocol):
    """One way to save."""

    def save(self, number: int) -> Durable:
        """Begin save `number`; when this returns, training goes on."""
        ...


class OfRank:
    """What every way needs to know."""

    def __init__(
        self, state: TrainState, parts: dict[str, Any], directory: Path, rank: int, ranks: int
    ) -> None:
        """`parts`: the state dicts that the state is made of."""
        self.state, self.parts, self.rank, self.ranks = state, parts, rank, ranks
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def manifest(
        self, number: int, files: tuple[ManifestFile, ...], layout: Layout = Layout.RANK, replicated: str = ""
    ) -> Manifest:
        """Of a save of ours."""
        return Manifest(
            job="benchmark", run=1, rank=self.rank, world_size=self.ranks, incarnation=1, generation=1, step=number,
            epoch=1, step_in_epoch=number, files=files, versions={}, integrated=True, layout=layout, replicated=replicated,
        )  # fmt: skip


class Ours:
    """What ModelCheckpoint does: one copy, another process writes it, a thread publishes it."""

    def __init__(self, of: OfRank) -> None:
        """Nothing is started yet."""
        self._of, self._captures = of, StagingBuffer()

    def save(self, number: int) -> Durable:
        """See `Way`."""
        captured = self._captures.capture(self._of.state)
        assert captured is not None, "this state can be captured"
        name = f"train-1_{number}.ckpt"

        def finish() -> None:
            captured.delay_write()
            staged = stage(self._of.directory, [WrittenContent(name, captured.write)])
            captured.close()
            staged.finish(lambda files: self._of.manifest(number, files), lambda: True)

        return _behind(finish)


class OursShared:
    """What ModelCheckpoint(layout="shared") does: each rank copies and writes its share of what all have, into one directory."""

    def __init__(self, of: OfRank) -> None:
        """Nothing is kept."""
        self._of, self._place = of, of.directory.parent / "all"

    def save(self, number: int) -> Durable:
        """See `Way`."""
        of = self._of
        pieces = of.state.take_shared(rank=of.rank, world_size=of.ranks)
        name = names.file_name(shared_names.rank_prefix("train", of.rank), epoch=1, step_in_epoch=number)
        files = shared_layout.contents(name, pieces)

        def manifest(listed: tuple[ManifestFile, ...]) -> Manifest:
            return of.manifest(number, listed, Layout.SHARED, pieces.replicated)

        def finish() -> None:
            stage(self._place, files).finish(manifest, lambda: True)

        return _behind(finish)


class Before:
    """What the release of 2026-11-22 does: the step waits while the state is written and digested, or deep-copied (async_save)."""

    def __init__(self, of: OfRank, *, copies: bool) -> None:
        """`copies`: async_save=True."""
        self._of, self._copies = of, copies

    def save(self, number: int) -> Durable:
        """See `Way`."""
        name = f"train-1_{number}.ckpt"
        if self._copies:
            copy = self._of.state.snapshot()
            return _behind(
                lambda: self._finish(number, stage(self._of.directory, [Content(name, copy.write)]))
            )
        staged = stage(self._of.directory, [Content(name, self._of.state.write)])
        return _behind(lambda: self._finish(number, staged))

    def _finish(self, number: int, staged: StagedCheckpoint) -> None:
        staged.finish(lambda files: self._of.manifest(number, files), lambda: True)


class TorchSave:
    """torch.save into a new file, by the step itself."""

    def __init__(self, of: OfRank, *, syncs: bool) -> None:
        """`syncs`: fsync before the step goes on."""
        self._of, self._syncs = of, syncs

    def save(self, number: int) -> Durable:
        """See `Way`."""
        with (self._of.directory / f"{number}.pt").open("wb") as file:
            torch.save(self._of.parts, file)
            if self._syncs:
                file.flush()
                os.fsync(file.fileno())
        return lambda: None


class Dcp:
    """torch.distributed.checkpoint: replicated tensors are written once, spread over the ranks."""

    def __init__(self, of: OfRank, kind: AsyncCheckpointerType | None) -> None:
        """`kind`: of async_save; None: save."""
        # All ranks write into one directory. Its threads talk to each other beside the steps: in a group of their own.
        self._of, self._kind, self._place = of, kind, of.directory.parent / "all"
        self._group = dist.new_group(backend="gloo")

    def save(self, number: int) -> Durable:
        """See `Way`."""
        place = self._place / str(number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._kind is None:
                state_dict_saver.save(self._of.parts, checkpoint_id=place, process_group=self._group)
                return lambda: None
            future = state_dict_saver.async_save(
                self._of.parts,
                checkpoint_id=place,
                async_checkpointer_type=self._kind,
                process_group=self._group,
            )
        return lambda: _done(future)


class Copy:
    """The floor: one copy of every tensor into memory that is kept."""

    def __init__(self, of: OfRank) -> None:
        """The memory is made and touched here."""
        self._pairs = [(one, one.clone()) for one in tensors_of(of.parts)]

    def save(self, number: int) -> Durable:
        """See `Way`."""
        del number
        for source, kept in self._pairs:
            kept.copy_(source)
        return lambda: None


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for part in inner for one in tensors_of(part)]


WAYS: dict[str, Callable[[OfRank], Way]] = {
    "copy into kept buffers": Copy,
    "ours": Ours,
    "ours, shared": OursShared,
    "ours, 2026-11-22": lambda of: Before(of, copies=False),
    "ours, 2026-11-22, async_save": lambda of: Before(of, copies=True),
    "torch.save": lambda of: TorchSave(of, syncs=False),
    "torch.save + fsync": lambda of: TorchSave(of, syncs=True),
    "DCP save": lambda of: Dcp(of, None),
    "DCP async_save, thread": lambda of: Dcp(of, AsyncCheckpointerType.THREAD),
    "DCP async_save, process": lambda of: Dcp(of, AsyncCheckpointerType.PROCESS),
}

KEEPS = {
    "copy into kept buffers": 1.0,
    "ours": 1.07,
    "ours, shared": 0.3,
    "ours, 2026-11-22, async_save": 1.0,
    "DCP async_save, thread": 1.0,
    "DCP async_save, process": 2.0,
}
"""Memory beside the state, in states: what does not fit beside each other is measured one after the other, each with the copy."""


def clear(directory: Path) -> None:
    """Remove what a way has saved."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)


def _behind(work: Callable[[], None]) -> Durable:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread.join


def _done(future: Any) -> None:
    future.result()
