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
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric

from recovery.checkpoint.position import Position
from recovery.lightning import logger_files, pruned_weights
from recovery.lightning.hook_state import HookState
from recovery.torch import gradients, mapped_file, restored
from recovery.torch import payload as payloads
from recovery.torch.file_layout import FileLayout
from recovery.torch.host_copy import HostCopy, copied_to_host
from recovery.torch.trainer_options import TrainerOptions, check_size, size_of
from recovery.training import changed_since
from recovery.training.changed_since import Override
from recovery.training.outlook import check_end, check_steps

_OF_META = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    *("dataloader_idx", "metric_attribute"),
)
_OF_CONNECTOR = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")

_SETTINGS = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "precision")
"""Of the Trainer, which decide the steps and are taken as they are now."""
_PARAMETERS = "parameters"
"""Another such setting: how many there are."""
_OURS = "recovery"
"""The key in Lightning's checkpoint."""


class FitState:
    """The state of one `fit`, as `recovery.ModelCheckpoint` saves it: at the beginning of a batch, before anything is done with it."""

    def __init__(
        self, trainer: Trainer, places: Callable[[], list[dict[str, Any]]], hooks: HookState, owner: str
    ) -> None:
        """Nothing is loaded yet. `places` says where each loader of the training is; `owner` is of what its loggers write (logger_files.py)."""
        self._trainer, self._places, self._hooks, self._owner = trainer, places, hooks, owner
        self.path: Path | None = None
        """The plan's checkpoint, for Lightning to load; None: training begins."""
        self._optimizer_steps = 0
        self._options: TrainerOptions | None = None
        self._saved_options: dict[str, Any] = {}
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
        self.path, self._optimizer_steps = path, int(payload["global_step"])
        # A copy: the file is not kept open, nor its pages used once it was deleted.
        self.saved = copied_to_host(saved)
        # Earlier releases have saved none.
        self._hooks.saved = self.saved.pop("hooks", None)
        self._saved_options = self.saved.pop("options", {})
        groups = [state["param_groups"] for state in payload["optimizer_states"]]
        self._hooks.options = copied_to_host([[_without_params(group) for group in of] for of in groups])
        self.checkpoint_directories = {
            key: state["dirpath"]
            for key, state in payload["callbacks"].items()
            if isinstance(state, dict) and state.get("dirpath")
        }

    def check_ends(self, at: Position, more: int) -> None:
        """See that training does not end before where it stands: Lightning would end at once, as if all were done.

        Args:
            at: of the session.
            more: epochs that StochasticWeightAveraging adds.

        Raises:
            UsageError: it does.
        """
        trainer = self._trainer
        if trainer.max_steps >= 0:
            check_steps(self._optimizer_steps, trainer.max_steps, field="Trainer(max_steps)")
        if (trainer.max_epochs or -1) >= 0:
            field = "Trainer(max_epochs)" + " and StochasticWeightAveraging's" * more
            check_end(at, trainer.max_epochs + more, field=field)

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return {**payloads.versions(), **changed_since.script(), "lightning": str(lightning.__version__)}

    def check_size(self, module: torch.nn.Module) -> None:
        """Before Lightning loads weights into it.

        Raises:
            CheckpointStateError: it has another number of parameters than the one that was saved.
        """
        check_size(self._saved_options, _PARAMETERS, [module])

    def note_options(self, override: Override | None) -> None:
        """Lightning has made optimizers and schedules, and loads their states next.

        Raises:
            UsageError: the override names what there is not, or an option differs between the ranks.
        """
        trainer = self._trainer
        self._options = TrainerOptions(
            {
                "optimizer": trainer.optimizers,
                "lr_scheduler": [config.scheduler for config in trainer.lr_scheduler_configs],
            },
            override,
            settings={name: getattr(trainer, name) for name in _SETTINGS}
            | {_PARAMETERS: size_of([trainer.lightning_module])},
            conditions=self.versions(),
        )

    def put_options(self) -> None:
        """Training goes on, and all that Lightning and hooks have of options is put back: say what the script has changed, and carry out the override."""
        assert self._options is not None, "optimizers were made"
        self._options.put(self._saved_options)

    def write(self, stream: BinaryIO) -> None:
        """Write all of it with torch.save."""
        torch.save(self._take(), stream)

    def lay_out(self) -> FileLayout:
        """Say where every byte of the file will be."""
        return FileLayout(self._take())

    def snapshot(self) -> HostCopy:
        """Copy it to the host's memory."""
        return HostCopy(self._take())

    def put_back(self) -> None:
        """What Lightning has not loaded, once it has loaded the rest."""
        saved, trainer = self.saved, self._trainer
        gradients.put({"module": [trainer.lightning_module]}, saved["gradients"])
        _put_back_logged(trainer, saved["logged"])
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
            "logged": _take_logged(trainer),
            "hooks": self._hooks.take(),
            "options": {} if self._options is None else self._options.take(),
            "loggers": logger_files.take(trainer.loggers, self._owner),
            "should_stop": trainer.should_stop,
            "last_saved_steps": {
                callback.state_key: callback._last_global_step_saved  # noqa: SLF001 - as above
                for callback in trainer.checkpoint_callbacks
                if hasattr(callback, "_last_global_step_saved")
            },
        }
        pruned_weights.as_built(saved["state_dict"], saved[_OURS]["hooks"]["pruned"])
        for name, value in saved.items():
            # At each save: a value that is unsafe could never be loaded.
            payloads.refuse_unsafe(name, value)
        return saved


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _take_logged(trainer: Trainer) -> dict[str, Any]:
    """Sums behind `self.log` and states of metrics, of an epoch that is under way: tensors, numbers and text; this rank's own."""
    connector = trainer._logger_connector  # noqa: SLF001 - of Lightning 2.6, which gives no public names to any of this
    loop = trainer.fit_loop.epoch_loop
    return {
        "results": {key: _taken(metric) for key, metric in loop._results.items()},  # noqa: SLF001 - as above
        "fx": connector._current_fx,  # noqa: SLF001 - as above
        "seen": dict(loop.val_loop._seen_batches_per_dataloader),  # noqa: SLF001 - as above
        "shown": {name: dict(getattr(connector, name)) for name in _OF_CONNECTOR},
        "metrics": {
            name: {"state": metric.metric_state, "count": metric.update_count}
            for name, metric in _metrics(trainer)
        },
    }


def _put_back_logged(trainer: Trainer, saved: dict[str, Any]) -> None:
    """Called when Lightning has built everything, before the first batch."""
    connector, loop = trainer._logger_connector, trainer.fit_loop.epoch_loop  # noqa: SLF001 - as above
    device = trainer.strategy.root_device
    metrics = dict(_metrics(trainer))
    for name, of in saved["metrics"].items():
        if name in metrics:
            _put_state(metrics[name], of["state"], of["count"], device)
    for key, of in saved["results"].items():
        loop._results[key] = _made(trainer, of, device)  # noqa: SLF001 - as above
    connector._current_fx = saved["fx"]  # noqa: SLF001 - as above
    # At an epoch's first batch Lightning clears what the last one has logged, and tells it by this.
    connector._first_loop_iter = False if loop.batch_progress.current.ready else None  # noqa: SLF001 - as above
    loop.val_loop._seen_batches_per_dataloader.update(saved["seen"])  # noqa: SLF001 - as above
    for name, values in saved["shown"].items():
        getattr(connector, name).update(values)


def _metrics(trainer: Trainer) -> list[tuple[str, Metric]]:
    module = trainer.lightning_module
    return [(name, inner) for name, inner in module.named_modules() if isinstance(inner, Metric)]


def _taken(metric: _ResultMetric) -> dict[str, Any]:
    meta, sync = metric.meta, metric.meta.sync
    return {
        "meta": {name: getattr(meta, name) for name in _OF_META},
        "reduce": meta.reduce_fx.__name__,
        "sync": {"should": sync.should, "op": sync.op, "rank_zero_only": sync.rank_zero_only},
        "state": metric.metric_state if metric.is_tensor else None,
        "count": metric.update_count,
        "has_reset": metric.has_reset,
        "step": metric._forward_cache if isinstance(metric._forward_cache, torch.Tensor) else None,  # noqa: SLF001 - as above
    }


def _made(trainer: Trainer, saved: dict[str, Any], device: torch.device) -> _ResultMetric:
    meta = _Metadata(**saved["meta"], reduce_fx=getattr(torch, saved["reduce"]))
    sync = saved["sync"]
    meta.sync = _Sync(
        fn=trainer.strategy.reduce,
        _should=sync["should"],
        _op=sync["op"],
        rank_zero_only=sync["rank_zero_only"],
    )
    metric = _ResultMetric(meta, is_tensor=saved["state"] is not None)
    if saved["state"] is not None:
        _put_state(metric, saved["state"], saved["count"], device)
    elif meta.metric_attribute is not None:
        metric.value = trainer.lightning_module.get_submodule(meta.metric_attribute)
        metric._update_count = saved["count"]  # noqa: SLF001 - as above
    metric.has_reset = saved["has_reset"]
    metric._forward_cache = None if saved["step"] is None else saved["step"].to(device)  # noqa: SLF001 - as above
    return metric


def _put_state(metric: Metric, state: dict[str, Any], count: int, device: torch.device) -> None:
    for name, value in state.items():
        here = [part.to(device) for part in value] if isinstance(value, list) else value.to(device)
        setattr(metric, name, here)
    metric._update_count = count  # noqa: SLF001 - as above
