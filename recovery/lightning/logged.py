"""What Lightning and torchmetrics keep of an epoch that is under way, and leave out of a checkpoint: sums behind `self.log`, states of metrics."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torchmetrics import Metric

_OF_META = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    *("dataloader_idx", "metric_attribute"),
)
_OF_CONNECTOR = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")


def take(trainer: Trainer) -> dict[str, Any]:
    """Tensors, numbers and text; this rank's own."""
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


def put_back(trainer: Trainer, saved: dict[str, Any]) -> None:
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
