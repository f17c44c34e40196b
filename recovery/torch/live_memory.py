"""What this process's memory holds of a training state, and how it becomes that of another rank (live rollback).

A process is clean at step T if the boundary of T was passed and nothing large has changed since: no optimizer has begun a step
(live_hooks.py), and parameters have the versions that they had. Large tensors are vouched for so, and never copied. What is small
and moves on in the middle of a step is copied at every boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from recovery.errors import CheckpointStateError
from recovery.torch import (
    fingerprint,
    live_content,
    live_header,
    live_limits,
    live_shards,
    live_transfer,
    process_group,
    spread,
)
from recovery.torch.keyed import base_seed, key_generators
from recovery.torch.live_buffers import KeptBuffers
from recovery.torch.live_content import Kept
from recovery.torch.live_header import CannotCarryError
from recovery.torch.live_hooks import Hooks
from recovery.torch.live_parts import LiveParts
from recovery.training.live import StepPosition

_STRUCTURE = "structure"
"""In what a source sends: as `LiveState.structure`."""


class HasLiveParts(Protocol):
    """A training state of this package."""

    def live_parts(self) -> LiveParts:
        """Its parts, sorted."""
        ...


class LiveMemory:
    """See `recovery.training.live.LiveMemory`."""

    def __init__(self, parts: LiveParts) -> None:
        """Hold these; nothing is known to be clean before `begin`."""
        self._seed = base_seed()
        """Noted before a checkpoint is loaded and before anything is keyed: both change it."""
        self._step = -1
        self._why = "no step has ended since its state was built"
        """Why the state cannot be given, until the next boundary; empty: nothing is known against it."""
        self._bind(parts, frozen=parts.frozen())

    def _bind(
        self,
        parts: LiveParts,
        *,
        frozen: Sequence[str],
        mirrored: Mapping[str, Sequence[str]] | None = None,
        given: Sequence[str] = (),
    ) -> None:
        self._parts, self._built_frozen = parts, frozen
        parts.follow_keys(self._seed)
        self._trained = list(parts.parameters.values())
        # What is spread over the ranks counts its changes, and may be changed through this rank's part as well.
        parts_here = [spread.local(parameter) for parameter in self._trained if spread.is_spread(parameter)]
        self._counted = [*self._trained, *parts_here]
        self._kept = Kept()
        self._buffers = KeptBuffers(
            parts.buffers, mirrors=parts.takes_buffers_of_rank_0(), known=mirrored, given=given
        )
        self._hooks = Hooks(parts, self._before_first_step)
        self._versions: list[int] = []
        self._unfit = ""
        self._is_first, self._is_trained = True, False

    @property
    def replicas(self) -> tuple[int, ...]:
        """See `recovery.training.live.LiveMemory`."""
        return self._parts.replicas

    def begin(self, step: int) -> None:
        """The state has just been built or loaded: it is that of the end of `step`."""
        self._why = "its boundary was not completed"
        process_group.note_boundary(self._parts.device())
        self._buffers.boundary()
        self._kept.copy_from(self._parts)
        self._why = self._apart() if self._parts.wrapped or self.replicas else ""
        self._parts.gradients_are_alike = not self._why
        self._versions = [tensor._version for tensor in self._counted]  # noqa: SLF001 - counts changes in place
        self._hooks.settled()
        self._step = step
        if self._is_first:
            self._is_first = False
            self._unfit = live_limits.too_large(self._kept.others)

    def loaded(self, step: int, *, rank: int) -> None:
        """The state has just been loaded from this rank's checkpoint, and the other ranks are to take it from here."""
        self._buffers.loaded(rank)
        self.begin(step)

    def boundary(self, step: int) -> None:
        """The state is that of the end of `step`. A collective where a model has buffers that training changes."""
        self._buffers.before_boundary()
        self._is_trained = True
        self.begin(step)

    def before_callbacks(self) -> None:
        """Callbacks follow that may change what the state holds; then `begin`."""
        self._buffers.before_callbacks()

    def _before_first_step(self) -> None:
        process_group.check_not_aborted()
        self._buffers.before_step()

    def next_step(self, step: int) -> None:
        """Key the random generators for what comes behind `step`."""
        # Not by rank: ranks that were seeded alike draw alike, and those with seeds of their own have them here.
        key_generators(self._seed, 0, step)

    def offer(self) -> tuple[str, str]:
        """Say whether the state of the last boundary can be given, and let go of what belonged to the world that is over."""
        self._why = why_not = self.why_not()
        self._hooks.close()
        self._parts.let_go()
        # Of what `session.keep` gives: the next wrapper is made as the first one was.
        self._parts.freeze(self._built_frozen)
        self._parts.build_attributes()
        for parameter in self._trained:
            # Copied at the boundary; this one may be a part of a bucket of the world that is over.
            parameter.grad = None
        return ("", why_not) if why_not else (self._parts.structure(), "")

    def why_not(self) -> str:
        """Why the state of the last boundary cannot be given, one clause; empty: it can."""
        known = (
            self._why
            or self._hooks.torn
            or self._unfit
            or self._buffers.why_not()
            or self._kept.gradients.why_not()
            or self._changed()
            or self._parts.changed_attribute()
            or self._parts.lost_position()
            or (
                "the device was still at its last step when the world was aborted"
                if process_group.left_undone()
                else ""
            )
        )
        if known:
            return known
        try:
            live_header.pack(self._tree())
        except CannotCarryError as error:
            return f"{error}, which cannot be sent"
        return ""

    def transfer(
        self,
        new_state: HasLiveParts,
        *,
        source: int,
        rank: int,
        shapes: str,
        at: StepPosition,
        replicas: Sequence[int] = (),
    ) -> str:
        """On all ranks: after it `new_state` holds the source's state of its last boundary, and this memory is that of `new_state`."""
        new = new_state.live_parts()
        if new.replicas != tuple(replicas):
            raise CheckpointStateError(
                field="live rollback",
                reason=f"the mesh that was built here lets ranks {list(new.replicas)} hold alike, that of rank {source} ranks {list(replicas)}",
                next_step="Build the same mesh at every entry and on every rank.",
            )
        if shapes:
            _check_structure(new, shapes, source)
        wire = live_transfer.Wire(
            source, replicas, live_shards.group_of(new.parameters.values(), replicas) if replicas else None
        )
        # A rank that was clean at the same step has the same already; whether it is the same, the digest will say.
        why_not = self.why_not() or ("" if self._step == at.step else f"it stands at step {self._step}")
        if rank == source:
            if why_not:
                raise CheckpointStateError(
                    field="live rollback",
                    reason=f"rank {source} cannot give its state of step {at.step} any more: {why_not}",
                    next_step="Leave what session.keep() gives as it is until session.steps() begins.",
                )
            tree = {**self._tree(), _STRUCTURE: shapes or new.structure()}
            live_transfer.give(wire, live_header.pack(tree))
        elif not why_not:
            live_transfer.take(wire, own={}, device=new.device(), wanted=False)
            tree = self._tree()
        else:
            if any(new.parameters[name] is mine for name, mine in self._parts.parameters.items()):
                self._why = f"it was taking the state of step {at.step}"
            tree = live_transfer.take(wire, own=live_content.own_tensors(new), device=new.device())
            if not shapes:
                _check_structure(new, tree[_STRUCTURE], source)
        new.follow_keys(self._seed)
        frozen = new.frozen()
        live_content.put(new, tree, {} if why_not else self._kept.drawn)
        self.close()
        self._bind(new, frozen=frozen, mirrored=tree["mirrored"], given=list(tree["buffers"]))
        new.gradients_are_alike = True
        self.begin(at.step)
        return self.digest()

    def digest(self) -> str:
        """SHA-256 (hex) of the state of the last boundary: the same on all ranks that are clean there."""
        return fingerprint.joined(fingerprint.of_parts(self._tree()))

    def close(self) -> None:
        """Remove hooks; let go of everything."""
        self._hooks.close()
        self._why = "it was closed"
        self._parts = LiveParts({}, gradients=False)
        self._trained, self._kept = [], Kept()
        self._buffers = KeptBuffers([], mirrors=False)

    def _tree(self) -> dict[str, Any]:
        return live_content.tree_of(self._parts, self._kept, self._buffers)

    def _apart(self) -> str:
        """Gradients of this rank alone cannot be given: the lost rank had others."""
        if self.replicas and (name := self._parts.unreduced()):
            return f"the gradient of {name} was not added over the ranks (set_requires_gradient_sync, set_requires_all_reduce)"
        if self.replicas and (name := self._parts.placed_otherwise()):
            return f"the gradient of {name} is spread in another way than the parameter"
        if not self._kept.gradients.tensors():
            return ""
        if not self._is_trained and not self._parts.gradients_are_alike:
            return (
                "its checkpoint holds gradients, and that they were added over the ranks is not written there "
                "(no_sync, or it was saved without MS_ROLLBACK=live)"
            )
        if name := self._hooks.of_this_rank_alone:
            return f"the gradients of {name} were not added over the ranks (no_sync)"
        if name := self._hooks.divided_in_buckets:
            return (
                f"the gradients of {name} lie in buckets (gradient_as_bucket_view), where a world of this size divides them in another "
                "way than carried ones: TrainState(gradients=False), if the loop clears them before each backward pass"
            )
        return ""

    def _changed(self) -> str:
        names = list(self._parts.parameters)
        names += [name for name, parameter in self._parts.parameters.items() if spread.is_spread(parameter)]
        for name, tensor, version in zip(names, self._counted, self._versions, strict=True):
            if tensor._version != version:  # noqa: SLF001 - counts changes in place
                return f"parameter {name} was changed outside of an optimizer"
        return self._parts.has_other_tensors()


def _check_structure(new: LiveParts, shapes: str, source: int) -> None:
    if new.structure() != shapes:
        raise CheckpointStateError(
            field="live rollback",
            reason=f"the models, optimizers and further parts that were built here are not like those of rank {source}",
            next_step="Build the same parts at every entry and on every rank.",
        )
