"""The training state: parameters from MindSpore's files and the place in the data set, also of a loop that is not Model.train's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import mindspore
from mindspore import dataset as datasets

from recovery.checkpoint.position import Position
from recovery.errors import CheckpointStateError

_CHUNK_BYTES = 1 << 20
_EPOCHS_MAX = 1_000_000
"""More than anybody trains. An iterator without an end (-1) cannot begin at a step."""


class TrainState:
    """Parameters of the network and of the optimizer, and the place in the data set.

    `recovery.ModelCheckpoint` saves it: files that `mindspore.load_checkpoint` reads.
    """

    def __init__(self, *, network: Any, optimizer: Any, dataset: Any) -> None:
        """Name the parts.

        Args:
            network: a cell; its parameters may have any dtype and shape and must have unique names.
            optimizer: of its parameters.
            dataset: what `Session.steps` draws batches from, each a tuple of tensors, one per column. Its size decides the steps of an epoch.
        """
        self._cell = mindspore.nn.CellList([network, optimizer])
        self._dataset = dataset
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
        load_parameters(path, self._cell)

    def take_position(self, position: Position, *, exact: bool) -> Position:
        """Put the data set behind the position's step."""
        return stand_behind(self._dataset, position.step, int(self._dataset.get_dataset_size()))

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return versions()

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


def stand_behind(dataset: Any, step: int, batches_per_epoch: int) -> Position:
    """Put a data set behind a step of all epochs together, before its iterator is made; 0: it begins where it stands.

    MindSpore counts its position in steps, and behind an epoch's last batch it stands in the next epoch.
    """
    if step:
        # With fast recovery off every random augmentation is drawn as an undisturbed run draws it.
        datasets.config.set_fast_recovery(False)
        dataset.set_init_step(step)
    epoch, batch = divmod(step, batches_per_epoch)
    return Position(step=step, epoch=epoch, batch=batch)


def load_parameters(
    path: Path, network: Any, *, key: bytes | None = None, mode: str = "AES-GCM"
) -> dict[str, Any]:
    """Load a .ckpt or .safetensors file, whose digest has been checked, into every parameter of `network`.

    In training that is the cell with the optimizer in it. `key` and `mode` are of an encrypted file.

    Returns:
        What the file holds besides, by name.

    Raises:
        CheckpointStateError: it cannot be read, or lacks a parameter.
    """
    options = (
        {"format": "safetensors"} if path.suffix == ".safetensors" else {"dec_key": key, "dec_mode": mode}
    )
    try:
        held = mindspore.load_checkpoint(str(path), **options)
        missing, extra = mindspore.load_param_into_net(network, held, strict_load=True)
    except Exception as error:
        # MindSpore raises half a dozen types for what is no file of its own.
        raise _unfit(path, f"cannot be loaded ({error})") from error
    if missing:
        raise _unfit(path, f"the checkpoint lacks {', '.join(sorted(missing)[:5])}")
    return {name: held[name] for name in extra}


def versions() -> dict[str, str]:
    """For the manifest."""
    return {"mindspore": str(mindspore.__version__)}


def _unfit(path: Path, reason: str) -> CheckpointStateError:
    return CheckpointStateError(
        field=str(path),
        reason=reason,
        next_step="Give the network and the optimizer that it was saved from.",
    )
