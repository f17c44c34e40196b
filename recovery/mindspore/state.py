"""The training state: parameters from MindSpore's files and the place in the data set, also of a loop that is not Model.train's."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import mindspore
from mindspore import dataset as datasets

from recovery.checkpoint.position import Position
from recovery.errors import CheckpointStateError
from recovery.mindspore.built import Built
from recovery.mindspore.division import Division
from recovery.training import changed_since
from recovery.training.changed_since import Override

_CHUNK_BYTES = 1 << 20
_EPOCHS_MAX = 1_000_000
"""More than anybody trains. An iterator without an end (-1) cannot begin at a step."""


class TrainState:
    """Parameters of the network and of the optimizer, and the place in the data set.

    `recovery.ModelCheckpoint` saves it: files that `mindspore.load_checkpoint` reads.
    """

    def __init__(
        self, *, network: Any, optimizer: Any, dataset: Any, override: Override | None = None
    ) -> None:
        """Name the parts.

        Args:
            network: a cell; its parameters may have any dtype and shape and must have unique names.
            optimizer: of its parameters.
            dataset: what `Session.steps` draws batches from, each a tuple of tensors, one per column. Its size decides the steps of an epoch.
            override: names of what a checkpoint does not decide where the program builds it otherwise than the one that saved:
                `{"optimizer": ["learning_rate"], "dataset": ["batch_size"]}`. What has changed and is not named is said, and stays as saved.

        Raises:
            UsageError: the override names what there is not.
        """
        self._dataset = dataset
        self._division = Division(dataset, int(dataset.get_dataset_size()))
        # Before the list gives its cells' parameters names of its own.
        self._built = Built(network, optimizer, self._division, override)
        self._cell = mindspore.nn.CellList([network, optimizer])
        self._iterator: Any = None

    @property
    def batches(self) -> Iterable[Any]:
        """Iterating it gives the rest of the current epoch; the next time, the next epoch."""
        return self._rest_of_epoch()

    def begin(self) -> None:
        """Keep everything as it was built: there is no checkpoint to load."""

    def write(self, stream: BinaryIO) -> None:
        """Write every parameter with mindspore.save_checkpoint."""
        self.snapshot().write(stream)

    def snapshot(self) -> _Copy:
        """Copy the parameters, so that a thread may write them while training goes on."""
        return _Copy(
            [
                {"name": parameter.name, "data": mindspore.Tensor(parameter.asnumpy().copy())}
                for parameter in self._cell.get_parameters()
            ]
        )

    def read(self, path: Path) -> None:
        """Load a file that `write` made.

        Raises:
            CheckpointStateError: the file does not fit these parts.
        """
        load_parameters(path, self._cell, leave=self._built.overridden)

    def take_position(self, position: Position, *, exact: bool) -> Position:
        """Put the data set there.

        Raises:
            CheckpointStateError: within an epoch, and the data set is divided otherwise than where it was saved.
        """
        at = self._division.place(position)
        stand_behind(self._dataset, self._division.steps_to(at))
        return at

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return versions()

    def built(self) -> dict[str, str]:
        """For the manifest: rates and other options, the division of the data, the number of parameters."""
        return self._built.said()

    def compare(self, saved: Mapping[str, str]) -> None:
        """Say what was built otherwise where `built` gave this.

        Raises:
            CheckpointStateError: it cannot be loaded into what is built here.
        """
        self._built.compare(saved)

    def _rest_of_epoch(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = self._dataset.create_tuple_iterator(num_epochs=_EPOCHS_MAX)
        yield from self._iterator


class _Copy:
    """Parameters as they were."""

    def __init__(self, held: list[dict[str, Any]]) -> None:
        self._held = held

    def write(self, stream: BinaryIO) -> None:
        """Let MindSpore write its format, which it does into files only."""
        with tempfile.TemporaryDirectory(prefix="recovery-") as directory:
            file = Path(directory, "state.ckpt")
            mindspore.save_checkpoint(self._held, str(file))
            with file.open("rb") as written:
                while chunk := written.read(_CHUNK_BYTES):
                    stream.write(chunk)


def stand_behind(dataset: Any, batches: int) -> None:
    """Put a data set behind so many of its batches, of all epochs together, before its iterator is made; 0: it begins where it stands."""
    if batches:
        # With fast recovery off every random augmentation is drawn as an undisturbed run draws it.
        datasets.config.set_fast_recovery(False)
        dataset.set_init_step(batches)


def load_parameters(
    path: Path,
    network: Any,
    *,
    leave: Collection[str] = (),
    key: bytes | None = None,
    mode: str = "AES-GCM",
) -> dict[str, Any]:
    """Load a .ckpt or .safetensors file, whose digest has been checked, into every parameter of `network`.

    In training that is the cell with the optimizer in it. `key` and `mode` are of an encrypted file.
    Parameters whose names are in `leave` stay as they are.

    Returns:
        What the file holds besides, by name.

    Raises:
        CheckpointStateError: it cannot be read, or lacks a parameter, or has one of another shape.
    """
    options = (
        {"format": "safetensors"} if path.suffix == ".safetensors" else {"dec_key": key, "dec_mode": mode}
    )
    try:
        held = mindspore.load_checkpoint(str(path), **options)
        held = {name: value for name, value in held.items() if name not in leave}
        _check_shapes(path, held, network)
        missing, extra = mindspore.load_param_into_net(network, held, strict_load=True)
    except CheckpointStateError:
        raise
    except Exception as error:
        # MindSpore raises half a dozen types for what is no file of its own.
        raise _unfit(path, f"cannot be loaded ({error})") from error
    missing = sorted(set(missing) - set(leave))
    if missing:
        raise _unfit(path, f"the checkpoint lacks {', '.join(missing[:5])}")
    return {name: held[name] for name in extra}


def _check_shapes(path: Path, held: Mapping[str, Any], network: Any) -> None:
    for one in network.get_parameters():
        was = getattr(held.get(one.name), "shape", one.shape)
        if tuple(was) != tuple(one.shape):
            raise _unfit(
                path, f"{one.name} was saved with shape {tuple(was)}, and has {tuple(one.shape)} here"
            )


def versions() -> dict[str, str]:
    """For the manifest: MindSpore's, and a digest of the script."""
    return {"mindspore": str(mindspore.__version__), **changed_since.script()}


def _unfit(path: Path, reason: str) -> CheckpointStateError:
    return CheckpointStateError(
        field=str(path),
        reason=reason,
        next_step="Give the network and the optimizer that it was saved from.",
    )
