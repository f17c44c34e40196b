"""What of TrainingArguments means something else where a rollback may come: refused by name, or taken over."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from transformers.trainer_utils import get_last_checkpoint

from recovery.errors import UsageError
from recovery.torch import payload
from recovery.torch.same_passes import length_of
from recovery.torch.trainer_options import size_of
from recovery.training import changed_since

_logger = logging.getLogger("recovery.transformers")
_KEPT_LEAST = 2


class _Refusal(NamedTuple):
    """An argument that cannot be as it is set."""

    field: str
    reason: str
    next_step: str


_REFUSED = (
    _Refusal(
        "save_only_model",
        "leaves the optimizer out of the folders, so training cannot go on from one",
        "Leave it out; trainer.save_model() behind trainer.train() writes the model alone.",
    ),
    _Refusal(
        "ignore_data_skip",
        "would use the first samples of an epoch twice behind a rollback, and its last ones never",
        "Leave it out.",
    ),
    _Refusal(
        "enable_jit_checkpoint",
        "takes SIGTERM for itself, by which a rank leaves in order",
        "Leave it out: save_steps says how much is trained again.",
    ),
)
"""True is wrong."""

_SETTINGS = (
    *("gradient_accumulation_steps", "max_grad_norm", "seed", "data_seed", "label_smoothing_factor"),
    *("lr_scheduler_type", "warmup_steps", "bf16", "fp16", "dataloader_drop_last"),
)
"""Decide the steps, and are taken as they are now."""
DIVISION = ("per_device_train_batch_size", "samples of the training set")
"""The place in an epoch is counted by them."""
PARAMETERS = "parameters of the model"


def settings(trainer: Any) -> dict[str, Any]:
    """What decides the steps of a training beside its optimizer and schedule, numbers and text."""
    values = {name: getattr(trainer.args, name, None) for name in _SETTINGS}
    found = {name: getattr(value, "value", value) for name, value in values.items()}
    size, count = trainer.args.train_batch_size, size_of([trainer.model])
    samples = None if trainer.train_dataset is None else length_of(trainer.train_dataset)
    return {**found, **dict(zip(DIVISION, (size, samples), strict=True)), PARAMETERS: count}


def versions() -> dict[str, str]:
    """For a manifest."""
    return {**payload.versions(), **changed_since.script(), "transformers": str(transformers.__version__)}


def check(arguments: Any) -> None:
    """Refuse TrainingArguments that no rollback can be exact with.

    Raises:
        UsageError: names the first one.
    """
    for refusal in _REFUSED:
        if getattr(arguments, refusal.field, False):
            raise UsageError(
                field=f"{refusal.field}=True", reason=refusal.reason, next_step=refusal.next_step
            )
    loading = arguments.accelerator_config
    if getattr(loading, "dispatch_batches", False) and not loading.split_batches:
        raise UsageError(
            field="accelerator_config.dispatch_batches=True",
            reason="would use samples of an epoch twice behind a rollback: Accelerate leaves out batches of one rank where a step reads one for each",
            next_step="Leave it out, or set split_batches=True with it.",
        )
    if str(getattr(arguments.save_strategy, "value", arguments.save_strategy)) == "no":
        _logger.warning("event=nothing_saved save_strategy='no': after a failure training begins again")


def take_limit(arguments: Any) -> int | None:
    """Take the removal of old folders from the Trainer, which does not know what a rollback needs: `save_total_limit` is None afterwards.

    Returns:
        How many folders stay; None: all.
    """
    limit: int | None = arguments.save_total_limit
    if limit is None or limit <= 0:
        return None
    arguments.save_total_limit = None
    if limit < _KEPT_LEAST:
        _logger.warning(
            "event=save_total_limit_raised from=%d to=%d reason='ranks can be one save apart'",
            limit,
            _KEPT_LEAST,
        )
    return max(limit, _KEPT_LEAST)


def beginning(arguments: Any, asked: str | bool | None, *, is_first: bool) -> str | None:
    """From which folder does a training begin that no rank has a checkpoint of, where the script asks for one (`resume_from_checkpoint`)?

    Returns:
        One that lies elsewhere; None: from nothing.

    Raises:
        UsageError: in the job's first generation: it lies where this job saves, and was there before the job.
    """
    if not asked:
        return None
    directory = Path(arguments.output_dir)
    if asked is True:
        found = get_last_checkpoint(str(directory)) if directory.is_dir() else None
        if found is None:
            return None
        asked = str(found)
    if Path(asked).absolute().parent != directory.absolute():
        return asked
    if is_first:
        raise UsageError(
            field=f"resume_from_checkpoint={asked!r}",
            reason="lies where this job is to save, and is none of its checkpoints",
            next_step="Move it elsewhere and name it there, or take another output_dir.",
        )
    _logger.warning(
        "event=folder_not_taken path=%s reason='not every rank holds it, so training begins again'", asked
    )
    return None
