"""All that decides the next step of a `Trainer.fit`, in one file: Lightning's own checkpoint, and what it leaves out, under a key of its own.

Lightning reads the file as any of its own (`fit(ckpt_path=...)`, `load_from_checkpoint`). It leaves out where a pass stands in the data, the random
generators, gradients that are not used yet, and what was logged of an epoch that is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import lightning
import torch
from lightning.pytorch import Trainer

from recovery.lightning import logged, logger_files
from recovery.torch import gradients, mapped_file, restored
from recovery.torch import payload as payloads
from recovery.torch.file_layout import FileLayout
from recovery.torch.host_copy import copied_to_host

_OURS = "recovery"
"""The key in Lightning's checkpoint."""


class FitState:
    """The state of one `fit`, as `recovery.ModelCheckpoint` saves it: at the beginning of a batch, before anything is done with it."""

    def __init__(self, trainer: Trainer, places: Callable[[], list[dict[str, Any]]], owner: str) -> None:
        """Nothing is loaded yet.

        Args:
            trainer: that fits.
            places: says where each loader of the training is.
            owner: of what its loggers write (logger_files.py).
        """
        self._trainer, self._places, self._owner = trainer, places, owner
        self.path: Path | None = None
        """The plan's checkpoint, for Lightning to load; None: training begins."""
        self.saved: dict[str, Any] = {}
        """What Lightning does not put back."""
        self.checkpoint_directories: dict[str, str] = {}
        """Where each of Lightning's ModelCheckpoints saves, by its key."""

    @property
    def batches(self) -> list[Any]:
        """Lightning draws them."""
        return []

    def begin(self) -> None:
        """Keep what the script has built."""

    def read(self, path: Path) -> None:
        """Note the file for Lightning, which loads it at a time of its own, and take out what is ours.

        Raises:
            CheckpointStateError: it is not a file of a `fit`.
        """
        try:
            payload = mapped_file.load(path)
            saved = payload[_OURS]
        except Exception as error:
            # torch raises half a dozen types for what is no file of ours.
            raise restored.unfit(str(path), f"is no state of a Lightning Trainer ({error})") from error
        self.path = path
        # A copy: the file is not kept open, nor its pages used once it was deleted.
        self.saved = copied_to_host(saved)
        self.checkpoint_directories = {
            key: state["dirpath"]
            for key, state in payload["callbacks"].items()
            if isinstance(state, dict) and state.get("dirpath")
        }

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return {**payloads.versions(), "lightning": str(lightning.__version__)}

    def write(self, stream: BinaryIO) -> None:
        """Write all of it with torch.save."""
        torch.save(self._take(), stream)

    def lay_out(self) -> FileLayout:
        """Say where every byte of the file will be."""
        return FileLayout(self._take())

    def snapshot(self) -> _Copy:
        """Copy it to the host's memory."""
        return _Copy(copied_to_host(self._take()))

    def put_back(self) -> None:
        """What Lightning has not loaded, once it has loaded the rest."""
        saved, trainer = self.saved, self._trainer
        gradients.put({"module": [trainer.lightning_module]}, saved["gradients"])
        logged.put_back(trainer, saved["logged"])
        trainer.should_stop = saved["should_stop"]
        for name, step in saved["last_saved_steps"].items():
            for callback in trainer.checkpoint_callbacks:
                if callback.state_key == name:
                    callback._last_global_step_saved = step  # noqa: SLF001 - Lightning leaves it out, and would save a step twice
        self.saved = {}

    def _take(self) -> dict[str, Any]:
        trainer = self._trainer
        adds_gradients = (
            trainer.accumulate_grad_batches > 1 or not trainer.lightning_module.automatic_optimization
        )
        saved: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # noqa: SLF001 - what save_checkpoint writes, which no public name gives
        saved[_OURS] = {
            "loaders": self._places(),
            # The next backward pass may add to them; else it finds none.
            "gradients": gradients.take({"module": [trainer.lightning_module]}) if adds_gradients else {},
            "logged": logged.take(trainer),
            "loggers": logger_files.take(trainer.loggers, self._owner),
            "should_stop": trainer.should_stop,
            "last_saved_steps": {
                callback.state_key: callback._last_global_step_saved  # noqa: SLF001 - as above
                for callback in trainer.checkpoint_callbacks
                if hasattr(callback, "_last_global_step_saved")
            },
        }
        for name, value in saved.items():
            # At each save: a value that is unsafe could never be loaded.
            payloads.refuse_unsafe(name, value)
        return saved


class _Copy:
    """A state as it was taken."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self._payload = payload

    def write(self, stream: BinaryIO) -> None:
        torch.save(self._payload, stream)
