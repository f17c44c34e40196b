"""Read a step of all ranks into a state of another mesh: the ranks' files are the storage, torch.distributed.checkpoint plans the reads.

Each rank reads for itself what its own shards need, from all ranks' files; no collective takes part.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.futures import Future
from typing_extensions import override

from recovery.checkpoint import whole_step
from recovery.checkpoint.contribution import Layout
from recovery.checkpoint.whole_step import WholeStep
from recovery.errors import CheckpointError, CheckpointStateError
from recovery.torch import mapped_file, module_names, shard_map, shared_state
from recovery.torch import payload as payloads
from recovery.torch.gradients import trained_by
from recovery.torch.shard_map import At
from recovery.training import shared_names

_Offsets = tuple[int, ...]


class SavedPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where in training a checkpoint stands."""

    step: int
    """Steps applied, over all epochs."""
    epoch: int
    """1-based."""
    step_in_epoch: int
    world_size: int
    """Ranks that saved it."""


class Saved:
    """One step as all ranks have saved it. Its files are mapped into memory; what is read of them is what is asked for."""

    def __init__(self, whole: WholeStep) -> None:
        """Digest all files, then look what is in them.

        Raises:
            CheckpointError: a file is not what it was saved as, or holds no training state; or the ranks' parts do not belong together.
        """
        whole.check()
        self._whole = whole
        self._payloads = _states_of(whole)
        self.parts: Mapping[str, Any] = self._payloads[0]["parts"]
        """Of rank 0, with its local tensors: what differs between ranks (buffers, parts of each rank) is as rank 0 had it."""
        self._chunks: defaultdict[At, dict[_Offsets, torch.Tensor]] = defaultdict(dict)
        self._sizes: dict[At, torch.Size] = {}
        for payload in self._payloads:
            self._note_shards(payload)
        for at, tensor in shard_map.tensors_in({"parts": self.parts}):
            if at not in self._sizes:
                self._sizes[at] = tensor.shape
                self._chunks[at][(0,) * tensor.dim()] = tensor

    @property
    def place(self) -> SavedPlace:
        """Where the job that saved it stood."""
        of = self._whole.of
        return SavedPlace(
            step=of.step, epoch=of.epoch, step_in_epoch=of.step_in_epoch, world_size=of.world_size
        )

    def size(self, at: At) -> torch.Size:
        """Shape of the whole tensor that stands there."""
        return self._sizes[at]

    def dtype(self, at: At) -> torch.dtype:
        """Its type."""
        return next(iter(self._chunks[at].values())).dtype

    def read_into(self, targets: Mapping[At, torch.Tensor]) -> None:
        """Fill tensors, whole or DTensors of any mesh, with what stands at their places.

        Raises:
            CheckpointStateError: a target has another shape, or not all of it was saved.
        """
        for at in targets:
            self._check_covered(at)
        # Unlike of `in_path` no two places share this text.
        by_name = {str(at): at for at in targets}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                load(
                    {str(at): tensor for at, tensor in targets.items()},
                    storage_reader=_Reader(self, by_name),
                    planner=DefaultLoadPlanner(flatten_state_dict=False),
                    no_dist=True,
                )
        except CheckpointException as error:
            reason = "; ".join(str(failure[0]) for failure in error.failures.values())
            raise unfit(str(self._whole.paths[0].parent), reason) from error

    def metadata(self, at: At) -> TensorStorageMetadata:
        """Of one tensor, in torch's words."""
        chunks = [
            ChunkStorageMetadata(torch.Size(offsets), tensor.shape)
            for offsets, tensor in self._chunks[at].items()
        ]
        return TensorStorageMetadata(TensorProperties(dtype=self.dtype(at)), self.size(at), chunks)

    def chunk(self, at: At, offsets: _Offsets) -> torch.Tensor:
        """The part of a tensor that begins there, in the memory of the mapped file."""
        return self._chunks[at][offsets]

    def _note_shards(self, payload: Mapping[str, Any]) -> None:
        local = dict(shard_map.tensors_in({"parts": payload["parts"]}))
        for entry in payload.get(payloads.SHARDS, {"tensors": ()})["tensors"]:
            at: At = entry["at"]
            if at not in local:
                # A gradient.
                continue
            self._sizes[at] = torch.Size(entry["shape"])
            # Of replicas the one of the lowest rank counts; a rank may have nothing of a small tensor.
            if local[at].numel() or not self._chunks[at]:
                self._chunks[at].setdefault(tuple(entry["offsets"]), local[at])

    def _check_covered(self, at: At) -> None:
        """All chunks together are the whole, and none reaches into another: a shard in several pieces would seem to."""
        size, chunks = self._sizes[at], list(self._chunks[at].items())
        whole = sum(tensor.numel() for _, tensor in chunks) == size.numel()
        inside = all(
            offset + length <= limit
            for offsets, tensor in chunks
            for offset, length, limit in zip(offsets, tensor.shape, size, strict=True)
            if tensor.numel()
        )
        if not whole or not inside or _overlap(chunks):
            raise unfit(
                shard_map.in_path(at),
                "its shards are no blocks (a strided placement), so they can be read on the mesh that saved them only",
            )


def saved_in(directory: Path, step: int | None) -> Saved:
    """Find a step by its directory, for a program that begins with it.

    Raises:
        CheckpointError: none is whole, or a file is damaged. It says no more than that: no plan goes back to another step.
    """
    try:
        return Saved(whole_step.find(directory, step))
    except CheckpointError as error:
        error.args = (error.fact,)
        raise


class _Reader(StorageReader):
    """What torch asks for, answered from the mapped files."""

    def __init__(self, saved: Saved, by_name: Mapping[str, At]) -> None:
        self._saved, self._by_name = saved, by_name

    @override
    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        described: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
            name: self._saved.metadata(at) for name, at in self._by_name.items()
        }
        return Metadata(described)

    @override
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    @override
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    @override
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @override
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._source(item))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    @override
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False

    def _source(self, item: ReadItem) -> torch.Tensor:
        index: MetadataIndex = item.storage_index
        chunk = self._saved.chunk(self._by_name[index.fqn], tuple(index.offset or ()))
        for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            chunk = chunk.narrow(dimension, start, length)
        return chunk


def states_for(saved: Saved, parts: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Read what these parts, without wrappers, need: for each what its `load_state_dict` takes. Tensors that they have are filled in place.

    Raises:
        CheckpointStateError: the checkpoint has no such part, or a tensor of another shape.
    """
    targets: dict[At, torch.Tensor] = {}
    states: dict[str, list[Any]] = {}
    for name, items in parts.items():
        found = saved.parts.get(name, [])
        if len(found) != len(items):
            raise unfit(name, f"the checkpoint holds {len(found)} of them, here are {len(items)}")
        states[name] = [
            shard_map.mapped(found[number], _Targets(saved, item, at, targets), at)
            for number, item in enumerate(items)
            for at in [("parts", name, number)]
        ]
    saved.read_into(targets)
    return states


class _Targets:
    """Puts in the place of each saved tensor the one that it will be read into, and remembers that."""

    def __init__(self, saved: Saved, item: Any, at: At, targets: dict[At, torch.Tensor]) -> None:
        self._saved, self._targets, self._depth = saved, targets, len(at)
        is_optimizer = isinstance(item, torch.optim.Optimizer)
        self._own = dict(shard_map.tensors_in(module_names.state_of(item), at))
        self._parameters = trained_by(item) if is_optimizer else []

    def __call__(self, at: At, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        target = self._own[at] if at in self._own else self._new(at)
        if target.dtype != self._saved.dtype(at):
            # torch would turn one into the other without a word.
            raise unfit(
                shard_map.in_path(at), f"was saved as {self._saved.dtype(at)} and is {target.dtype} here"
            )
        self._targets[at] = target
        return target

    def _new(self, at: At) -> torch.Tensor:
        """An optimizer makes its state at its first step: what has a parameter's shape lies as the parameter does."""
        size, dtype, inner = self._saved.size(at), self._saved.dtype(at), at[self._depth :]
        if self._parameters and inner[0] == "state" and isinstance(inner[1], int):
            parameter = self._parameters[inner[1]] if inner[1] < len(self._parameters) else None
            if isinstance(parameter, DTensor) and parameter.shape == size:
                return torch.empty_like(parameter.detach(), dtype=dtype)
        return torch.empty(size, dtype=dtype)


def unfit(field: str, reason: str) -> CheckpointStateError:
    """The error of a checkpoint that cannot become this state."""
    return CheckpointStateError(
        field=field,
        reason=reason,
        next_step="Build the same model and optimizer as the job that saved, on any mesh, or choose another checkpoint.",
    )


def _states_of(whole: WholeStep) -> list[Mapping[str, Any]]:
    """The states that together hold every tensor, rank 0's first."""
    if whole.of.layout is Layout.SHARED:
        side = shared_names.side_path(whole.paths[0])
        return [module_names.of_file(shared_state.join(side, whole.paths, whole.of.replicated))]
    # Whole states are alike on all ranks.
    paths = whole.paths if whole.of.layout is Layout.SHARDED else whole.paths[:1]
    return [_payload(path) for path in paths]


def _payload(path: Path) -> Mapping[str, Any]:
    try:
        payload = mapped_file.load(path)
    except Exception as error:
        # torch raises half a dozen types for what is no file of ours.
        raise unfit(str(path), f"cannot be loaded ({error})") from error
    if not isinstance(payload, dict) or "parts" not in payload:
        raise unfit(str(path), "is no training state")
    return module_names.of_file(payload)


def _overlap(chunks: list[tuple[_Offsets, torch.Tensor]]) -> bool:
    """Do two blocks share an element? Sorted by the first dimension that they are cut along, a block meets only its neighbours."""
    blocks = sorted((offsets, tuple(tensor.shape)) for offsets, tensor in chunks if tensor.numel())
    for number, (offsets, shape) in enumerate(blocks):
        for others, their_shape in blocks[number + 1 :]:
            if others and others[0] >= offsets[0] + shape[0]:
                break
            if all(
                a < b + d and b < a + c
                for a, c, b, d in zip(offsets, shape, others, their_shape, strict=True)
            ):
                return True
    return False
