"""What a script has beside what it has prepared, and what of it Accelerate and this package keep: recovery/torch/beside.py names the rest."""

from __future__ import annotations

from typing import Any

import torch

from recovery.torch.around import Advice, Around
from recovery.torch.beside import Beside

_KEEP = "accelerator.register_for_checkpointing"
_ADVICE = Advice(
    field="accelerator.prepare",
    schedule=f"Give it with its optimizer: accelerator.prepare(..., scheduler), or {_KEEP}(scheduler).",
    others=f"give optimizers to accelerator.prepare, and what has a state_dict and load_state_dict to {_KEEP}, before accelerator.epochs",
    copies=f"give an object that has them in its state_dict and load_state_dict to {_KEEP}, before accelerator.epochs",
    generator=f"Give an object that has its state in state_dict and load_state_dict to {_KEEP}, or draw from torch's, numpy's or Python's own generators",
)


def parts_of(accelerator: Any) -> dict[str, list[Any]]:
    """What was prepared. Accelerate's own of optimizers and schedules hold those of the script."""
    optimizers, schedules = accelerator._optimizers, accelerator._schedulers  # noqa: SLF001 - nothing public tells
    scaler = getattr(accelerator, "scaler", None)
    return {
        "model": [*accelerator._models],  # noqa: SLF001 - as above
        "optimizer": [*(one.optimizer for one in optimizers), *optimizers],
        "lr_scheduler": [*(one.scheduler for one in schedules), *schedules],
        "scaler": [] if scaler is None else [scaler],
    }


def of(accelerator: Any) -> Beside:
    """Of one loop over the epochs."""

    def parts() -> dict[str, list[Any]]:
        return {**parts_of(accelerator), "registered": [*accelerator._custom_objects]}  # noqa: SLF001 - as above

    def around() -> Around:
        registered, loaders = accelerator._custom_objects, accelerator._dataloaders  # noqa: SLF001 - as above
        # Of a module only parameters and buffers are saved.
        keeping = [one for one in registered if not isinstance(one, torch.nn.Module)]
        return Around(keeping=keeping, loaders=loaders, own=(accelerator,))

    return Beside(parts, around, _ADVICE)
