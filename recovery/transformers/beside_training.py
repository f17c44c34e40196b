"""What a script has beside a Trainer's model, optimizer and schedule, and what of it is kept: recovery/torch/beside.py names the rest."""

from __future__ import annotations

from typing import Any

from recovery.accelerate import beside_loop
from recovery.torch.around import Advice, Around, Held
from recovery.torch.beside import Beside
from recovery.transformers.own_attributes import OwnAttributes, own_of

_ADVICE = Advice(
    field="Trainer(optimizers)",
    schedule="Give it to the Trainer, Trainer(optimizers=(optimizer, scheduler)), or make it in create_scheduler; several as one SequentialLR or ChainedScheduler.",
    others="have the Trainer's optimizer train all parameters, and make averages a submodule of the model",
    copies="hold them as an attribute of a callback or of a Trainer of your own, or as a submodule of the model",
    generator="Draw from torch's, numpy's or Python's own generators",
)


def of(trainer: Any, own: OwnAttributes) -> Beside:
    """Of one training; `own` is what callbacks and the Trainer itself count."""

    def parts() -> dict[str, list[Any]]:
        prepared = beside_loop.parts_of(trainer.accelerator)
        optimizers = [trainer.optimizer, getattr(trainer.optimizer, "optimizer", None)]
        given = {
            "model": [trainer.model],
            "optimizer": [*prepared["optimizer"], *optimizers],
            "lr_scheduler": [*prepared["lr_scheduler"], trainer.lr_scheduler],
            "scaler": prepared["scaler"],
        }
        # By their ids: what was prepared is the Trainer's, too.
        return {
            part: [*{id(one): one for one in items if one is not None}.values()]
            for part, items in given.items()
        }

    def around() -> Around:
        loader = trainer.callback_handler.train_dataloader
        return Around(
            called={name: Held(dict(own_of(one))) if one is trainer else one for name, one in own.called()},
            keeping=[Held(said) for said in own.said()],
            loaders=[] if loader is None else [loader],
            own=(trainer, trainer.accelerator, *(one for _, one in own.called())),
        )

    return Beside(parts, around, _ADVICE)
