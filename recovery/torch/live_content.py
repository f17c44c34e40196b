"""A training state as one tree: read off its parts and what was copied at the last boundary, or put into parts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from recovery.torch import live_header, live_shards, spread
from recovery.torch.buffers import write_buffer
from recovery.torch.gradients import trained_by
from recovery.torch.live_buffers import KeptBuffers
from recovery.torch.live_gradients import KeptGradients
from recovery.torch.live_header import CannotCarryError
from recovery.torch.live_parts import LiveParts

_AS_IT_IS = frozenset({type(None), bool, int, float, str, bytes})
_NOT_IN_A_GROUP = frozenset({"params", "param_names"})
"""Of a parameter group: what the training function builds."""


@dataclass
class Kept:
    """What is copied at each boundary, but for buffers."""

    groups: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    """Parameters whose `requires_grad` is False."""
    others: dict[str, Any] = field(default_factory=dict)
    loaders: dict[str, Any] = field(default_factory=dict)
    drawn: dict[str, str] = field(default_factory=dict)
    """What this rank has received, by loader: other ranks have received something else."""
    divisions: dict[str, Any] = field(default_factory=dict)
    """Of the data, by loader: asked once, for a data set may take its time to say how long it is."""
    gradients: KeptGradients = field(default_factory=KeptGradients)

    def copy_from(self, parts: LiveParts) -> None:
        """Copy what it is now."""
        for name, optimizer in parts.optimizers.items():
            self.groups[name] = [_copied_group(group) for group in optimizer.param_groups]
        self.frozen = parts.frozen()
        for name, item in parts.others.items():
            self.others[name] = copied(item.state_dict())
        for name, loader in parts.loaders.items():
            self.loaders[name], self.drawn[name] = loader.position, loader.drawn
            if name not in self.divisions:
                self.divisions[name] = loader.division()
        if parts.has_gradients:
            self.gradients.boundary(
                {
                    name: gradient
                    for name, parameter in parts.parameters.items()
                    if (gradient := parameter.grad) is not None
                }
            )


def tree_of(parts: LiveParts, kept: Kept, buffers: KeptBuffers) -> dict[str, Any]:
    """The state of the last boundary, and which buffers are mirrored. Nothing is copied.

    Raises:
        CannotCarryError: the state of an optimizer is kept under what no other rank has.
    """
    return {
        "parameters": _own_parts(parts.parameters),
        "frozen": kept.frozen,
        "buffers": buffers.kept(),
        "mirrored": buffers.mirrored(),
        "optimizers": {name: _state_of(name, optimizer) for name, optimizer in parts.optimizers.items()},
        "spread": {name: _spread_in(optimizer) for name, optimizer in parts.optimizers.items()},
        "groups": kept.groups,
        "gradients": _own_parts(kept.gradients.tensors()),
        "others": kept.others,
        "loaders": {name: {**at, "of": kept.divisions[name]} for name, at in kept.loaders.items()},
    }


def own_tensors(parts: LiveParts) -> dict[str, torch.Tensor]:
    """Large tensors that can be written into, by their path in the tree."""
    large = {
        "parameters": _own_parts(parts.parameters),
        "optimizers": {name: _state_of(name, optimizer) for name, optimizer in parts.optimizers.items()},
    }
    packed = live_header.pack(large)
    return {note.path: tensor for note, tensor in zip(packed.notes, packed.tensors, strict=True)}


@torch.no_grad()
def put(parts: LiveParts, tree: Mapping[str, Any], drawn: Mapping[str, str]) -> None:
    """Make the tree the state of these parts. Tensors of the tree that are not theirs may become theirs.

    Args:
        parts: of this rank.
        tree: of any rank.
        drawn: what this rank has received where the tree stands, as of `Kept`; empty: that is lost.
    """
    for name, parameter in parts.parameters.items():
        _write(spread.local(parameter), tree["parameters"][name])
    parts.freeze(tree["frozen"])
    for buffer in parts.buffers:
        if buffer.persistent or buffer.name in tree["buffers"]:
            write_buffer(buffer.holder, buffer.field, tree["buffers"][buffer.name])
    for name, item in parts.others.items():
        item.load_state_dict(copied(tree["others"][name]))
    for name, optimizer in parts.optimizers.items():
        _put_optimizer(optimizer, tree["optimizers"][name], tree["spread"][name], tree["groups"][name])
    for name, parameter in parts.parameters.items():
        gradient = tree["gradients"].get(name)
        # Never into the one that is there: it may be a part of a bucket of an earlier world.
        parameter.grad = (
            None if gradient is None else live_shards.spread_like(gradient.to(parameter.device), parameter)
        )
    for name, loader in parts.loaders.items():
        loader.load_position({**tree["loaders"][name], "drawn": drawn.get(name, "")})
        loader.prime()


def copied(value: Any) -> Any:
    """A copy that shares nothing that can change. Several times as fast as copy.deepcopy for what states are made of."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is dict:
        return {key: inner if type(inner) in _AS_IT_IS else copied(inner) for key, inner in value.items()}
    if kind is list:
        return [inner if type(inner) in _AS_IT_IS else copied(inner) for inner in value]
    if kind is tuple:
        return tuple([inner if type(inner) in _AS_IT_IS else copied(inner) for inner in value])
    if kind is torch.Tensor:
        return value.detach().clone()
    return copy.deepcopy(value)


def _copied_group(group: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(group)
    for built in _NOT_IN_A_GROUP:
        found.pop(built, None)
    if _AS_IT_IS.issuperset(map(type, found.values())):
        return found
    return {key: value if type(value) in _AS_IT_IS else copied(value) for key, value in found.items()}


def _own_parts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: spread.local(tensor) for name, tensor in tensors.items()}


def _state_of(name: str, optimizer: torch.optim.Optimizer) -> dict[int | str, Any]:
    """Its state by the place of the parameter in its groups, or by the text under which it keeps it."""
    places = {id(parameter): place for place, parameter in enumerate(trained_by(optimizer))}
    state: dict[int | str, Any] = {}
    # torch says that its keys are tensors; optimizers of others also keep things by name.
    kept: Mapping[Any, Any] = optimizer.state
    for key, value in kept.items():
        if isinstance(key, torch.Tensor):
            # What is not in its groups any more is not trained any more.
            if id(key) in places:
                state[places[id(key)]] = _own_part_of(name, key, value)
        elif type(key) is str:
            state[key] = value
        else:
            reason = f"{name} keeps its state by {type(key).__qualname__}"
            raise CannotCarryError(reason)
    return state


def _own_part_of(name: str, parameter: torch.Tensor, value: Any) -> Any:
    """What an optimizer keeps for a parameter, of tensors that are spread as the parameter is this rank's part."""
    if not spread.is_spread(parameter) or type(value) is not dict:
        return value
    for key, tensor in value.items():
        if spread.is_spread(tensor) and not live_shards.is_placed_like(tensor, parameter):
            reason = f"{name} keeps {key} of a parameter in another way over the ranks than the parameter"
            raise CannotCarryError(reason)
    return {
        key: spread.local(tensor) if spread.is_spread(tensor) else tensor for key, tensor in value.items()
    }


def _spread_in(optimizer: torch.optim.Optimizer) -> dict[int, list[str]]:
    """By the place of a parameter: what is kept for it that is spread over the ranks as it is."""
    kept: Mapping[Any, Any] = optimizer.state
    found: dict[int, list[str]] = {}
    for place, parameter in enumerate(trained_by(optimizer)):
        if spread.is_spread(parameter):
            state = kept.get(parameter)
            if type(state) is dict:
                found[place] = [key for key, value in state.items() if spread.is_spread(value)]
    return found


def _put_optimizer(
    optimizer: torch.optim.Optimizer,
    state: Mapping[int | str, Any],
    in_parts: Mapping[int, list[str]],
    groups: list[dict[str, Any]],
) -> None:
    """Directly: `load_state_dict` would cast the state to its parameter's dtype, which training does not."""
    trained = trained_by(optimizer)
    kept: dict[Any, Any] = optimizer.state
    kept.clear()
    for key, value in state.items():
        kept[trained[key] if type(key) is int else key] = value
    for place, names in in_parts.items():
        parts = {name: live_shards.spread_like(state[place][name], trained[place]) for name in names}
        if parts:
            kept[trained[place]] = {**state[place], **parts}
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        for gone in set(group) - set(saved) - _NOT_IN_A_GROUP:
            del group[gone]
        for key, value in saved.items():
            mine = group.get(key)
            if (
                isinstance(mine, torch.Tensor)
                and isinstance(value, torch.Tensor)
                and mine.shape == value.shape
            ):
                # A compiled step knows this tensor.
                _write(mine.detach(), value)
            else:
                group[key] = copied(value)


def _write(mine: torch.Tensor, value: torch.Tensor) -> None:
    if mine.data_ptr() != value.data_ptr() or mine.device != value.device:
        mine.copy_(value)
