"""What a sharded tensor is on disk: its local part, and beside it in words where that part belongs in the whole; and whether that fits this program.

A DTensor knows its mesh, and a mesh knows process groups: neither can be read without the world that it was made in. So the payload of a
checkpoint holds plain local tensors, and under `shards` the shard map, which is made of numbers, text and lists only:

    {"meshes": [{"shape": [2, 2], "names": ["replicate", "shard"], "ranks": [0, 1, 2, 3]}],
     "tensors": [{"at": ("parts", "model", 0, "0.weight"), "mesh": 0, "placements": [["replicate"], ["shard", 0]],
                  "shape": [13, 7], "stride": [7, 1], "dtype": "torch.float32", "offsets": [7, 0]}]}
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from recovery.errors import CheckpointStateError
from recovery.torch import module_names
from recovery.torch.gradients import trained_by
from recovery.torch.payload import SHARDS

At = tuple[Hashable, ...]
"""Where a value stands in a payload: the keys and positions on the way to it."""
MeshKey = tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]
"""Shape, names of the dimensions (empty: they have none), and the ranks in order."""


def mapped(value: Any, change: Callable[[At, Any], Any], at: At = ()) -> Any:
    """Give a payload in which `change` was asked about every value, containers first; what it gives back takes the value's place.

    Containers are copied where something in them changed, and are those of `value` elsewhere.
    """
    changed = change(at, value)
    if changed is not value:
        return changed
    if isinstance(value, dict):
        inner = {key: mapped(item, change, (*at, key)) for key, item in value.items()}
        if all(inner[key] is item for key, item in value.items()):
            return value
        # A module's state_dict carries the versions of its parts as an attribute.
        copied = copy.copy(value)
        copied.update(inner)
        return copied
    if type(value) in (list, tuple):
        items = [mapped(item, change, (*at, position)) for position, item in enumerate(value)]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    return value


def tensors_in(value: Any, at: At = ()) -> Iterator[tuple[At, torch.Tensor]]:
    """Every tensor of a payload with its place, DTensors too."""
    if isinstance(value, torch.Tensor):
        yield at, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_in(item, (*at, key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from tensors_in(item, (*at, position))


def split(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Put the local tensor in the place of every DTensor and add the shard map; no collective, nothing is copied.

    Without a DTensor the payload comes back as it is.

    Raises:
        CheckpointStateError: a tensor is placed in a way that this release cannot describe.
    """
    meshes: dict[MeshKey, int] = {}
    entries: list[dict[str, Any]] = []

    def change(at: At, value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        mesh = meshes.setdefault(key_of(value.device_mesh), len(meshes))
        entries.append({"at": at, "mesh": mesh, **_described(at, value)})
        with torch.no_grad():
            return value.to_local().detach()

    taken_apart = mapped(dict(payload), change)
    if not entries:
        return dict(payload)
    listed = [
        {"shape": list(shape), "names": list(names), "ranks": list(ranks)} for shape, names, ranks in meshes
    ]
    return {**taken_apart, SHARDS: {"meshes": listed, "tensors": entries}}


def join(payload: Mapping[str, Any], meshes: Mapping[MeshKey, DeviceMesh]) -> dict[str, Any]:
    """Undo `split` in a world that has the same meshes, which are given as this process has them.

    Raises:
        CheckpointStateError: a tensor lies on a mesh that is not among them.
    """
    if SHARDS not in payload:
        return dict(payload)
    shards = payload[SHARDS]
    keys = [_key(mesh) for mesh in shards["meshes"]]
    entries = {entry["at"]: entry for entry in shards["tensors"]}

    def change(at: At, value: Any) -> Any:
        entry = entries.get(at)
        if entry is None:
            return value
        mesh = meshes.get(keys[entry["mesh"]])
        if mesh is None:
            raise other_mesh(
                at, f"lies on a mesh of {in_words(keys[entry['mesh']])}, which this program has none of"
            )
        return DTensor.from_local(
            value,
            mesh,
            [_placement(words) for words in entry["placements"]],
            run_check=False,
            shape=torch.Size(entry["shape"]),
            stride=tuple(entry["stride"]),
        )

    return {name: mapped(part, change, (name,)) for name, part in payload.items() if name != SHARDS}


def key_of(mesh: DeviceMesh) -> MeshKey:
    """What two meshes have in common that place tensors alike."""
    return tuple(mesh.shape), tuple(mesh.mesh_dim_names or ()), tuple(mesh.mesh.flatten().tolist())


def other_mesh(at: At, reason: str) -> CheckpointStateError:
    """The error of a tensor that was saved on another mesh."""
    return CheckpointStateError(
        field=in_path(at),
        reason=f"the checkpoint's tensor {reason}",
        next_step="Start with the mesh that saved it, or load it into a new job with TrainState.read_sharded.",
    )


def in_path(at: At) -> str:
    """Name a place in a payload for people: `model.0.0.weight`."""
    return ".".join(str(step) for step in (at[1:] if at[:1] == ("parts",) else at))


def in_words(key: MeshKey) -> str:
    """Name a mesh for people: `2 x 2 ranks (replicate, shard)`."""
    shape, names, _ = key
    named = f" ({', '.join(names)})" if names else ""
    return " x ".join(str(size) for size in shape) + f" ranks{named}"


def _described(at: At, tensor: DTensor) -> dict[str, Any]:
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return {
        "placements": [_words(at, placement) for placement in tensor.placements],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype),
        "offsets": list(offsets),
    }


def _words(at: At, placement: Placement) -> list[str | int]:
    if type(placement) is _StridedShard:
        return ["strided_shard", placement.dim, int(placement.split_factor)]
    if type(placement) is Shard:
        return ["shard", placement.dim]
    if type(placement) is Replicate:
        return ["replicate"]
    if type(placement) is Partial:
        return ["partial", placement.reduce_op]
    raise CheckpointStateError(
        field=in_path(at),
        reason=f"it is placed by {placement}, which a checkpoint cannot describe",
        next_step="Place it by Shard, Replicate or Partial before it is saved.",
    )


def _placement(words: list[Any]) -> Placement:
    kind, *rest = words
    if kind == "strided_shard":
        return _StridedShard(rest[0], split_factor=rest[1])
    if kind == "shard":
        return Shard(rest[0])
    return Replicate() if kind == "replicate" else Partial(rest[0])


def _key(mesh: Mapping[str, Any]) -> MeshKey:
    return tuple(mesh["shape"]), tuple(mesh["names"]), tuple(mesh["ranks"])


def is_sharded(parts: Mapping[str, Iterable[Any]]) -> bool:
    """Is any tensor of these parts a DTensor?"""
    return any(True for _ in _sharded(parts))


def put_back(payload: Mapping[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Make DTensors of this world out of a rank's own file, as `split` made it, for objects without wrappers.

    Raises:
        CheckpointStateError: it was saved on another mesh, or placed in another way on this one. Nothing was loaded: a load would
            move shards between the ranks, which not all of them may be waiting for.
    """
    meshes = {key_of(tensor.device_mesh): tensor.device_mesh for tensor in _sharded(parts)}
    joined = join(payload, meshes)
    saved = dict(tensors_in({"parts": joined["parts"]}))
    for at, here in _targets(parts, saved):
        _compare(at, saved[at], here)
    return joined


def _targets(
    parts: Mapping[str, list[Any]], saved: Mapping[At, torch.Tensor]
) -> Iterator[tuple[At, torch.Tensor]]:
    """What the tensors of the file will be copied into. An optimizer has none of its own before its first step: it takes the file's."""
    states = {
        name: [
            {} if isinstance(item, torch.optim.Optimizer) else module_names.state_of(item) for item in items
        ]
        for name, items in parts.items()
    }
    for at, here in tensors_in({"parts": states}):
        if at in saved:
            yield at, here


def _compare(at: At, saved: torch.Tensor, here: torch.Tensor) -> None:
    if isinstance(saved, DTensor) != isinstance(here, DTensor):
        there, now = ("is sharded", "is not") if isinstance(saved, DTensor) else ("is whole", "is sharded")
        raise other_mesh(at, f"{there}, and the one of this program {now}")
    if isinstance(saved, DTensor) and isinstance(here, DTensor) and saved.placements != here.placements:
        raise other_mesh(at, f"is placed by {saved.placements}, the one of this program by {here.placements}")


def _sharded(parts: Mapping[str, Iterable[Any]]) -> Iterator[DTensor]:
    for items in parts.values():
        for item in items:
            for tensor in _tensors_of(item):
                if isinstance(tensor, DTensor):
                    yield tensor


def _tensors_of(item: Any) -> Iterator[torch.Tensor]:
    if isinstance(item, torch.nn.Module):
        yield from item.parameters()
        yield from item.buffers()
    elif isinstance(item, torch.optim.Optimizer):
        yield from trained_by(item)
    else:
        # A wrapper around a model, running averages.
        yield from (tensor for _, tensor in tensors_in(item.state_dict()))
