"""The training of the comparison in a trainer: `program_trainers.py lightning|transformers [plain]`.

Plain is as the trainer's users write it for torchrun: the trainer saves, and loads its newest checkpoint when it is started again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from program_common import BATCH_SIZE, EPOCHS, SAVE_STEPS, STEP_MS, digits
from torch import nn
from typing_extensions import override
from work_log import mark, stepped


def told(rank: int, step: int, first: int) -> None:
    """The rank has applied a step; a step ends with a sleep, as a device would keep the processor free."""
    time.sleep(STEP_MS / 1000)
    if step == first:
        mark("loaded", rank)
    stepped(rank, step)


def lightning(*, plain: bool) -> Callable[[], None]:
    """Give the training."""
    import lightning.pytorch as pl  # noqa: PLC0415 - the other trainer must not pay for it
    from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

    class Net(pl.LightningModule):  # type: ignore[misc]  # not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(784, 10)

        def training_step(self, batch: Any, index: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    class Told(pl.Callback):  # type: ignore[misc]  # as above
        first = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            mark("world", trainer.global_rank)
            self.first = trainer.global_step + 1

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            told(trainer.global_rank, trainer.global_step, self.first)

    options: dict[str, Any] = {
        "accelerator": "cpu",
        "strategy": "ddp",
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [Told()],
    }

    def train() -> None:
        data = DataLoader(digits(), batch_size=BATCH_SIZE, shuffle=True)
        if plain:
            saver = pl.callbacks.ModelCheckpoint("ckpt", every_n_train_steps=SAVE_STEPS, save_last=True)
            options["callbacks"].append(saver)
            trainer = pl.Trainer(devices=int(os.environ["LOCAL_WORLD_SIZE"]), **options)
            last = Path("ckpt/last.ckpt")
            trainer.fit(Net(), data, ckpt_path=str(last) if last.exists() else None)
        else:
            import recovery  # noqa: PLC0415 - as above
            from recovery.lightning import Trainer  # noqa: PLC0415 - as above

            config = recovery.CheckpointConfig(save_checkpoint_steps=SAVE_STEPS, keep_checkpoint_max=3)
            Trainer(enable_checkpointing=False, recovery_checkpoint=config, **options).fit(Net(), data)

    if plain:
        return train
    from recovery.lightning import run  # noqa: PLC0415 - as above

    return run(train)


def transformers(*, plain: bool) -> Callable[[], None]:
    """Give the training."""
    from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: PLC0415 - as above

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(784, 10)

        @override
        def forward(self, images: Any, labels: Any) -> Any:
            return {"loss": nn.functional.cross_entropy(self.net(images), labels)}

    class Told(TrainerCallback):  # type: ignore[misc]  # as above
        first = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            mark("world", args.process_index)
            self.first = state.global_step + 1

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            told(args.process_index, state.global_step, self.first)

    def train() -> None:
        arguments = TrainingArguments(
            output_dir="ckpt",
            per_device_train_batch_size=BATCH_SIZE,
            num_train_epochs=EPOCHS,
            save_steps=SAVE_STEPS,
            save_total_limit=3,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        made: Any = Trainer
        if not plain:
            from recovery.transformers import Trainer as Recovered  # noqa: PLC0415 - as above

            made = Recovered
        images, labels = digits().tensors
        data = [{"images": image, "labels": label} for image, label in zip(images, labels, strict=True)]
        trainer = made(model=Net(), args=arguments, train_dataset=data, callbacks=[Told()])
        trainer.train(resume_from_checkpoint=plain and any(Path("ckpt").glob("checkpoint-*")))

    if plain:
        return train
    import recovery.transformers  # noqa: PLC0415 - as above

    return recovery.transformers.run(train)


if __name__ == "__main__":
    torch.set_num_threads(1)
    mark("entered")
    {"lightning": lightning, "transformers": transformers}[sys.argv[1]](plain="plain" in sys.argv)()
