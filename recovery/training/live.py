"""What a framework offers so that training goes on from a survivor's memory (live rollback). `recovery.torch` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class StepPosition:
    """Where a step ended."""

    step: int
    """Over all epochs."""
    epoch: int
    """The pass over the data, 1-based."""
    step_in_epoch: int


class LiveMemory(Protocol):
    """The state of one training function as this process's memory holds it; it outlives the generation in which it was made."""

    @property
    def replicas(self) -> tuple[int, ...]:
        """The ranks that hold what this one holds, itself among them, where tensors are spread over the ranks; empty: all ranks do."""
        ...

    def begin(self, step: int) -> None:
        """The state has just been built, or loaded from a checkpoint: it is that of the end of `step`. No collective.

        `transfer` ends with it by itself.
        """
        ...

    def loaded(self, step: int, *, rank: int) -> None:
        """The state has just been loaded from this rank's checkpoint of `step`, and the other ranks are to take it from here. No collective."""
        ...

    def boundary(self, step: int) -> None:
        """The state is that of the end of `step`: copy what is small, note what is large. Main thread, at every step, on every rank.

        It may be a collective: where a model has buffers that training changes, rank 0's go to all.
        """
        ...

    def before_callbacks(self) -> None:
        """Behind a boundary callbacks follow that may change what the state holds; `begin` is called when they have ended. No collective."""
        ...

    def next_step(self, step: int) -> None:
        """Key the random generators for what comes behind `step`."""
        ...

    def offer(self) -> tuple[str, str]:
        """After training was left: can the state of the last boundary be given to others?

        It lets go of everything but models, optimizers and copies, and may be asked again.

        Returns:
            SHA-256 (hex) of the structure, and an empty text; or an empty one, and why not, one clause for people.
        """
        ...

    def transfer(
        self,
        new_state: Any,
        *,
        source: int,
        rank: int,
        shapes: str,
        at: StepPosition,
        replicas: Sequence[int] = (),
    ) -> str:
        """In the new world, on all ranks: the source gives its state of its last boundary; then `new_state` holds it on every rank.

        This memory is that of `new_state` from then on. Where it raises, it still is what it was before, as far as it can be.

        Args:
            new_state: the training state of this entry.
            source: the rank that gives.
            rank: this one.
            shapes: digest of the structure that the source has offered; empty: it has loaded its checkpoint (`loaded`).
            at: where the state stood.
            replicas: the ranks that take it from this source, itself among them; empty: all ranks.

        Returns:
            SHA-256 (hex) of what these ranks share, as it lies in `new_state` now: the same on all of them.

        Raises:
            CheckpointStateError: `new_state` is built otherwise.
        """
        ...

    def close(self) -> None:
        """Remove hooks; let go of everything."""
        ...


@runtime_checkable
class GivesMemory(Protocol):
    """A training state whose memory can be given to other ranks."""

    def live_memory(self) -> LiveMemory:
        """The memory of this state, before `begin`. Ask before anything is loaded: the seed of the random generators is noted here."""
        ...

    def why_not_live(self) -> tuple[str, ...]:
        """What can be neither derived nor given, a sentence each; empty: live rollback is possible."""
        ...


class KeptObjects(Protocol):
    """What a framework does with what `session.keep` holds, where a world ends and where the next is formed. No collectives, main thread."""

    def leave_world(self, kept: Mapping[str, object]) -> str:
        """The generation ends: have all that is kept let go of its world, which is still there.

        Args:
            kept: all of it, by name; what is not in it any more is no longer kept.

        Returns:
            Why these objects cannot be taken into another world, one clause for people: all are let go then, since one may hold
            another. Empty: they can.
        """
        ...

    def enter_world(self, kept: object) -> None:
        """An object of an earlier entry is asked for: it belongs to the world of this entry now.

        Raises:
            UsageError: it needs one, and there is none yet.
        """
        ...

    def let_go(self) -> None:
        """Nothing that `leave_world` was given is kept any more."""
        ...
