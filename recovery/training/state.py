"""What a framework must offer so that training can be rolled back. `recovery.torch.TrainState` is one implementation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable


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
        """Framework names and versions for the manifest."""
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
