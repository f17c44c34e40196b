"""What a script has beside a `fit`, and what of it Lightning and this package keep: recovery/torch/beside.py names the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch import Trainer

from recovery.torch.around import Advice, Around, Held
from recovery.torch.attribute_values import FRAMEWORKS, root
from recovery.torch.beside import Beside

_SAVE_HOOKS = ("state_dict", "on_save_checkpoint")

_HOOKS = "keep its state with on_save_checkpoint and on_load_checkpoint of the module or of a callback"
_ADVICE = Advice(
    field="configure_optimizers",
    schedule=f"Return it from configure_optimizers, beside its optimizer, or {_HOOKS} that holds it as an attribute.",
    others=f"return optimizers from configure_optimizers, make averages a submodule, or {_HOOKS} that holds it as an attribute",
    copies=f"hold them as a submodule or a buffer of the module, or {_HOOKS} that holds them as an attribute",
    generator=f"{_HOOKS[0].upper()}{_HOOKS[1:]} that holds it as an attribute, or draw from torch's, numpy's or Python's own generators",
)


def of(trainer: Trainer, loaders: Callable[[], list[Any]]) -> Beside:
    """Of one `fit`; `loaders` gives those of the training."""

    def parts() -> dict[str, list[Any]]:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        return {
            "model": [trainer.lightning_module],
            "optimizer": trainer.optimizers,
            "lr_scheduler": [config.scheduler for config in trainer.lr_scheduler_configs],
            "scaler": [] if scaler is None else [scaler],
        }

    def around() -> Around:
        called = dict(_called(trainer))
        holders = [trainer.lightning_module, *called.values()]
        keeping = [one for one in holders if keeps_its_own(one)]
        # Lightning's callbacks that average save this of what they hold.
        averages = [Held({"of": getattr(one, "_average_model", None)}) for one in trainer.callbacks]
        wrappers = trainer.strategy._lightning_optimizers  # noqa: SLF001 - of each optimizer one, which has no state of its own
        own = (trainer, *trainer.loggers, *wrappers)
        return Around(called, [*keeping, *averages], loaders(), own)

    return Beside(parts, around, _ADVICE)


def _called(trainer: Trainer) -> Iterator[tuple[str, Any]]:
    yield from ((key_of(trainer, callback), callback) for callback in trainer.callbacks)
    if trainer.datamodule is not None:
        yield "datamodule", trainer.datamodule


def key_of(trainer: Trainer, callback: Any) -> str:
    """A name that is the same at each start."""
    return f"{type(callback).__qualname__}_{trainer.callbacks.index(callback)}"


def keeps_its_own(holder: Any) -> bool:
    """Has the user given it hooks that save? Lightning's own know nothing of what a class of the user's adds."""
    return any(is_overridden(holder, name) for name in _SAVE_HOOKS)


def is_overridden(holder: Any, name: str) -> bool:
    """By the user: in a class that is none of Lightning's, or as LambdaCallback does it."""
    home = next((kind for kind in type(holder).__mro__ if name in vars(kind)), None)
    return name in vars(holder) or (home is not None and root(home) not in FRAMEWORKS)
