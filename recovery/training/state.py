"""What a framework must offer so that training can be rolled back. `recovery.torch.TrainState` is one implementation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from recovery.checkpoint.position import Position
from recovery.errors import UsageError


class RestorableState(Protocol):
    """Everything that decides the next step: weights, optimizer, schedules, random generators, data position."""

    def begin(self) -> None:
        """Called once per entry of the training function at step 0, before the first batch: nothing is loaded."""
        ...

    def read(self, path: Path) -> None:
        """Load a file that this state once wrote; afterwards the next batch and every random number are those that followed the save.

        Raises:
            CheckpointStateError: the file does not fit this state.
        """
        ...

    def versions(self) -> dict[str, str]:
        """For the manifest: framework names and versions, and conditions of the process on which bits depend. What differs at a load is said."""
        ...


class TrainingState(RestorableState, Protocol):
    """A state that `Session.steps` trains and `recovery.ModelCheckpoint` saves."""

    @property
    def batches(self) -> Iterable[Any]:
        """The loader that `Session.steps` draws from. Iterating it gives the rest of the current epoch, then it stands at the next."""
        ...

    def write(self, stream: BinaryIO) -> None:
        """Write the whole state to `stream`, which only grows (no seek)."""
        ...

    def snapshot(self) -> Snapshot:
        """Copy the state, so that a thread may write it while training goes on (async_save)."""
        ...


@runtime_checkable
class TakesPosition(Protocol):
    """A state that is told where in the data training goes on."""

    def take_position(self, position: Position, *, exact: bool) -> Position:
        """Stand there. Called behind `read`, before the next batch.

        Args:
            position: of the checkpoint.
            exact: False: an earlier release did not save it, so the end of a pass and its last step look alike.

        Returns:
            The same place, as this state's loader counts it.
        """
        ...


@runtime_checkable
class SaysHowBuilt(Protocol):
    """A state whose file does not say how the program had built it: the manifest does, in words."""

    def built(self) -> dict[str, str]:
        """What the program has built; behind `compare`, what is in force."""
        ...

    def compare(self, saved: Mapping[str, str]) -> None:
        """Called before `read`: say by name what had been built otherwise. Others may be among those that were saved, and some of these missing.

        Raises:
            CheckpointStateError: what was saved cannot be loaded into what is built here.
        """
        ...


@runtime_checkable
class ComparesPasses(Protocol):
    """A state that knows how many batches the passes of the other ranks have."""

    def compare_pass(self) -> None:
        """Before the next batch, where a pass or the rest of one begins.

        Raises:
            UsageError: another rank's has more batches, or fewer.
        """
        ...


@runtime_checkable
class HasReplica(Protocol):
    """A state that is kept alike on all ranks, or a part of it."""

    def replica(self) -> dict[str, str]:
        """Fingerprints of what every rank must have alike now, by the names of tensors; empty: nothing is to be compared."""
        ...


def only_state(before: object, state: TrainingState) -> TrainingState:
    """The one state of an entry: a plan's checkpoint is of one, and says of no second loop whether it had begun.

    Args:
        before: which an entry has begun to train; None: none yet.
        state: to be trained.

    Raises:
        UsageError: there is one.
    """
    if before is None:
        return state
    raise UsageError(
        field="session.steps",
        reason="was called a second time in one entry of the training: behind a failure "
        + (
            "it would go back to where the first loop began, and train those steps again"
            if state is before
            else "the state of the first loop would be given the checkpoint of the second"
        ),
        next_step="Train all passes in one call, with one state that holds every part, and tell the passes apart by session.epoch; what is"
        " trained behind that is a job of its own, with an MS_RECOVERY_PATH of its own.",
    )


def next_pass(state: TrainingState) -> Iterable[Any]:
    """The batches of the pass that begins or goes on, which has as many on every rank, as far as the state can tell.

    Raises:
        UsageError: it has not.
    """
    if isinstance(state, ComparesPasses):
        state.compare_pass()
    return state.batches


def is_sharded(state: object) -> bool:
    """Is this state spread over the ranks, so that no rank's file holds all of it? One that does not say is whole."""
    return bool(getattr(state, "sharded", False))


class Snapshot(Protocol):
    """A frozen copy of a training state."""

    def write(self, stream: BinaryIO) -> None:
        """Write it, in the same format as `TrainingState.write`."""
        ...


class CannotLayOutError(Exception):
    """This state has to write itself; the text says why."""


class LaidOut(Protocol):
    """The file of a state that is not written yet."""

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        ...

    def copy_to(self, memory: memoryview) -> None:
        """Copy the whole file to memory of at least `size` bytes, so that the state may change."""
        ...

    def differs_from(self, memory: memoryview) -> bool:
        """Does the state of now differ from what `copy_to` has copied?"""
        ...

    def let_go(self) -> None:
        """Hold nothing of the state any more: it was copied, and is compared no more."""
        ...

    def is_read_from(self, path: Path, memory: memoryview) -> bool:
        """Does reading the file give what is in memory? `path`: of the file that was written from it."""
        ...


@runtime_checkable
class LaysOut(Protocol):
    """A state that can say what its file will look like before it is written: a save then costs the step one copy."""

    def lay_out(self) -> LaidOut:
        """Say where every byte of the file will be.

        Raises:
            CannotLayOutError: it has to write itself.
        """
        ...


class SharedPieces(Protocol):
    """What one rank writes of a state that all ranks share, as the state was."""

    @property
    def replicated(self) -> str:
        """SHA-256 (hex) of what all ranks share: the same on all of them."""
        ...

    def write_part(self, stream: BinaryIO) -> None:
        """Write what this rank writes for all."""
        ...

    def write_side(self, stream: BinaryIO) -> None:
        """Write what only this rank has."""
        ...


@runtime_checkable
class SharesState(Protocol):
    """A state of which every rank can write a part for all: `ModelCheckpoint(layout="shared")` saves it so."""

    def take_shared(self, *, rank: int, world_size: int) -> SharedPieces:
        """Copy what this rank writes, so that the state may change."""
        ...

    def fingerprints(self, side: Path) -> dict[str, str]:
        """Of the shared parts by name, in a file that `write_side` wrote; empty: it cannot be read."""
        ...

    def read_shared(self, side: Path, parts: Sequence[Path], replicated: str) -> None:
        """Load a rank's own file and all ranks' parts, by rank.

        Raises:
            CheckpointManifestError: together they are not the state that `replicated` names. Nothing was loaded.
            CheckpointStateError: they do not fit this state.
        """
        ...


class Loss(Protocol):
    """A number or a one-element tensor."""

    def __float__(self) -> float:
        """Its value; for a tensor this waits for the device."""
        ...
